//! A deterministic, simulated-time LockBackend for tests
