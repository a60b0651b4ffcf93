// Included before all else: lazyrope's fmt is not that of the program it is linked into.
#define FMT_BEGIN_NAMESPACE \
  namespace fmt {           \
  inline namespace of_lazyrope {
#define FMT_END_NAMESPACE \
  }                       \
  }
