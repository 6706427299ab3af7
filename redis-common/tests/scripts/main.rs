//! The Lua scripts on a real server.

mod damaged;
mod port;
mod server;
mod support;
