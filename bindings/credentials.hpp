#pragma once
// Credentials that Python provides. See redis::CredentialSource.

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "redis/credentials.hpp"

namespace kvferry {

class PyCredentials {
 public:
  [[nodiscard]] int wait(double timeout_s) const;
  void provide(std::string username, std::string password) const;
  void refuse(std::string why) const;
  [[nodiscard]] const std::shared_ptr<redis::CredentialSource>& source() const { return source_; }

 private:
  std::shared_ptr<redis::CredentialSource> source_ = std::make_shared<redis::CredentialSource>();
};

}  // namespace kvferry
