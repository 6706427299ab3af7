//! Distributed locks over Redis.
