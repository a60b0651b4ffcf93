// Where fmt is compiled once (CMakeLists.txt), each source includes this first. It gives
// lazyrope's fmt a namespace of its own, so that it does not clash with the fmt of the program that
// links lazyrope.
#define FMT_BEGIN_NAMESPACE \
  namespace fmt {           \
  inline namespace of_lazyrope {
#define FMT_END_NAMESPACE \
  }                       \
  }
