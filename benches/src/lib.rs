//! Criterion benches of leasehold, its clients and their floors
