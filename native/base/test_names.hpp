#pragma once
// Statuses and kinds of errors by name: for tests, fuzzers and the simulator.

#include <string_view>

#include "base/errors.hpp"

namespace kvferry {

inline std::string_view name(Status status) noexcept {
  switch (status) {
    case Status::kOk:
      return "OK";
    case Status::kMiss:
      return "MISS";
    case Status::kSizeMismatch:
      return "SIZE_MISMATCH";
    case Status::kCorrupt:
      return "CORRUPT";
    case Status::kTimeout:
      return "TIMEOUT";
    case Status::kUnavailable:
      return "UNAVAILABLE";
    case Status::kServerError:
      return "SERVER_ERROR";
    case Status::kCancelled:
      return "CANCELLED";
    case Status::kPending:
      return "PENDING";
  }
  return "?";
}

inline std::string_view name(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument:
      return "invalid argument";
    case Errc::kClosed:
      return "closed";
    case Errc::kForked:
      return "forked";
    case Errc::kCapacity:
      return "capacity";
    case Errc::kTimeout:
      return "timeout";
    case Errc::kResolve:
      return "resolve";
    case Errc::kConnect:
      return "connect";
    case Errc::kDisconnect:
      return "disconnect";
    case Errc::kProtocol:
      return "protocol";
    case Errc::kAuth:
      return "auth";
    case Errc::kServer:
      return "server";
    case Errc::kSystem:
      return "system";
    case Errc::kCertificate:
      return "certificate";
  }
  return "?";
}

}  // namespace kvferry
