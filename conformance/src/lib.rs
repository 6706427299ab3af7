//! The conformance suite that every leasehold backend passes
