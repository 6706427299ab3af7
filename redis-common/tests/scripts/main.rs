//! The Lua scripts on a real server.

mod port;
mod server;
mod support;
