#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace lazyrope {

template <class Signature>
class FunctionRef;

// A reference to a callable that the caller owns. It is valid during the call that takes it, and
// allocates nothing.
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class Function>
    requires(!std::is_same_v<std::remove_cvref_t<Function>, FunctionRef>)
  // NOLINTNEXTLINE(google-explicit-constructor): callers pass a lambda directly
  FunctionRef(const Function& function)
      : function_(std::addressof(function)), call_([](const void* f, Arguments... arguments) {
          return (*static_cast<const Function*>(f))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const {
    return call_(function_, std::forward<Arguments>(arguments)...);
  }

 private:
  const void* function_;
  Result (*call_)(const void*, Arguments...);
};

}  // namespace lazyrope
