#include "runtime/emulator/shell.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

namespace lazyrope {
namespace {

void check(int error, const char* call) {
  if (error != 0) throw std::system_error(error, std::generic_category(), call);
}

pid_t spawn_shell(const std::string& line) {
  posix_spawnattr_t attributes;
  check(posix_spawnattr_init(&attributes), "posix_spawnattr_init");
  sigset_t default_signals;
  sigemptyset(&default_signals);
  sigaddset(&default_signals, SIGCHLD);
  posix_spawnattr_setsigdefault(&attributes, &default_signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const char* const arguments[] = {"sh", "-c", line.c_str(), nullptr};
  pid_t shell = 0;
  const int error = posix_spawn(&shell, "/bin/sh", nullptr, &attributes,
                                const_cast<char* const*>(arguments), environ);
  posix_spawnattr_destroy(&attributes);
  check(error, "posix_spawn");
  return shell;
}

void wait_without_reaping(pid_t shell) {
  siginfo_t ended;
  int result = -1;
  do {
    result = waitid(P_PID, static_cast<id_t>(shell), &ended, WEXITED | WNOWAIT);
  } while (result < 0 && errno == EINTR);
}

std::optional<int> reap(pid_t shell) {
  int status = 0;
  while (waitpid(shell, &status, 0) < 0) {
    if (errno == ECHILD) return std::nullopt;
    if (errno != EINTR) check(errno, "waitpid");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::optional<int> run_in_shell(const std::string& line, const std::stop_token& stop) {
  const pid_t shell = spawn_shell(line);
  {
    // The shell is not reaped in this block, so its number cannot be that of another process yet.
    const std::stop_callback terminate(stop, [&] { ::kill(shell, SIGTERM); });
    wait_without_reaping(shell);
  }
  return reap(shell);
}

}  // namespace lazyrope
