#pragma once
// The settings of a client as Python gives them: a dictionary of ClientConfig's fields.

#include <nanobind/nanobind.h>

#include "net/tls.hpp"
#include "redis/config.hpp"

namespace kvferry {

// Checked by Python; a missing or None value keeps the default. Raises on a wrong type.
[[nodiscard]] redis::Config make_config(const nanobind::dict& settings);
[[nodiscard]] net::TlsConfig make_tls_config(const nanobind::dict& settings);

}  // namespace kvferry
