//! Lua scripts, key encoding and reply decoding shared by leasehold's Redis backends
