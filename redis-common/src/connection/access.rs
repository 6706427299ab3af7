//! Missing access rights of a user on the server.

/// Names the ACL rule that a refused user lacks (`NOPERM`, `NOAUTH`, `WRONGPASS`). `None` for other
/// replies. `prefix` is the key prefix.
pub(crate) fn missing_access(prefix: &str, reply: &str) -> Option<String> {
    if reply.starts_with("NOAUTH") {
        return Some("the URL or client needs a user name and password".into());
    }
    if reply.starts_with("WRONGPASS") {
        return Some("the user name or the password is wrong, or the user is disabled".into());
    }
    // Inside scripts the code is ERR, with the same text.
    if reply.contains("access") && reply.contains("key") {
        return Some(format!("the user lacks the key pattern ~{prefix}*"));
    }
    if reply.contains("access") && reply.contains("channel") {
        return Some(format!("the user lacks the channel pattern &{prefix}*"));
    }
    if !reply.starts_with("NOPERM") {
        return None;
    }
    let command = reply.split('\'').nth(1)?;
    Some(format!("the user lacks the command +{command}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_the_missing_right() {
        let table = [
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Some("the user lacks the command +evalsha"),
            ),
            (
                "NOPERM User locker has no permissions to run the 'info' command",
                Some("the user lacks the command +info"),
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Some("the user lacks the key pattern ~p:*"),
            ),
            (
                "NOPERM No permissions to access a key",
                Some("the user lacks the key pattern ~p:*"),
            ),
            (
                "NOPERM No permissions to access a channel",
                Some("the user lacks the channel pattern &p:*"),
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned \
                 in the command arguments",
                Some("the user lacks the key pattern ~p:*"),
            ),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                Some("the user name or the password is wrong, or the user is disabled"),
            ),
            (
                "NOAUTH Authentication required.",
                Some("the URL or client needs a user name and password"),
            ),
            ("ERR unknown command", None),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                None,
            ),
        ];
        for (reply, expected) in table {
            assert_eq!(missing_access("p:", reply).as_deref(), expected, "{reply}");
        }
    }
}
