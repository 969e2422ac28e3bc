//! The name or address of a machine, and its parts that no report may contain.

use crate::failure::Failure;
use facts::CompactSort;

/// A machine in ssh's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    /// `name`, `user@name` or an address.
    pub(super) destination: String,
    /// The port, if it differs from ssh's configuration.
    pub(super) port: Option<u16>,
}

impl Host {
    /// Reads `name`, `user@name`, `user@name:port` and `user@[address]:port`.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let wrong = || {
            let hint = "for example gpu1, root@203.0.113.7:22014 or root@[2001:db8::7]:22014";
            Failure::hinted(format!("`{text}` is not a host name"), hint)
        };
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (format!("{user}@"), rest),
            None => (String::new(), text),
        };
        let (name, port) = match rest.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((address, ""))) => (address, None),
            Some(Some((address, port))) => {
                (address, Some(port.strip_prefix(':').ok_or_else(wrong)?))
            }
            Some(None) => return Err(wrong()),
            // More than one colon is an IPv6 address without a port.
            None if rest.matches(':').count() == 1 => {
                rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)))
            }
            None => (rest, None),
        };
        let port = port.map(str::parse).transpose().map_err(|_| wrong())?;
        let plain = |text: &str| !text.contains(|c: char| c.is_whitespace() || c.is_control());
        // A leading dash would be an ssh option, which may run a local program.
        if name.is_empty()
            || user == "@"
            || text.starts_with('-')
            || name.starts_with('-')
            || !plain(text)
        {
            return Err(wrong());
        }
        Ok(Self { destination: format!("{user}{name}"), port })
    }

    /// The addresses in the output of `ssh -G` and in the argument: `name` and `name:port`. A name that only this
    /// machine's configuration knows is not an address, and may be the machine's host name.
    pub(super) fn addresses(&self, configuration: &str) -> Vec<String> {
        let value = |key: &str| {
            configuration.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
        };
        let typed = self.destination.rsplit('@').next();
        let port = self.port.map(|port| port.to_string());
        let port = port.as_deref().or(value("port"));
        let mut addresses = Vec::new();
        for name in
            value("hostname").into_iter().chain(typed).filter(|name| name.contains(['.', ':']))
        {
            let whole = port.map(|port| match name.contains(':') {
                true => format!("[{name}]:{port}"),
                false => format!("{name}:{port}"),
            });
            addresses.extend(whole.into_iter().chain([name.to_owned()]));
        }
        addresses.compact_sort();
        addresses.dedup();
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_named_as_ssh_and_providers_name_it() {
        let check = |text: &str, destination: &str, port: Option<u16>| {
            let expect = Host { destination: destination.to_owned(), port };
            assert_eq!(Host::parse(text).unwrap(), expect, "{text}");
        };
        check("gpu1", "gpu1", None);
        check("ubuntu@gpu1", "ubuntu@gpu1", None);
        check("root@203.0.113.7:22014", "root@203.0.113.7", Some(22014));
        check("2001:db8::7", "2001:db8::7", None);
        check("root@[2001:db8::7]:22014", "root@2001:db8::7", Some(22014));
        check("[2001:db8::7]", "2001:db8::7", None);
        for wrong in [
            "",
            "-oProxyCommand=x",
            "root@-x",
            "@gpu1",
            "gpu1:port",
            "gpu1:99999",
            "a b",
            "[::1",
            "[::1]22",
        ] {
            let error = Host::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("is not a host name"), "{wrong}: {error}");
        }
    }

    #[test]
    fn r4_21_addresses_include_host_and_port() {
        let check = |host: &str, configuration: &str, expect: &[&str]| {
            assert_eq!(Host::parse(host).unwrap().addresses(configuration), expect, "{host}");
        };
        check("gpu1", "user root\nhostname gpu1\nport 22\n", &[]);
        check(
            "pod",
            "user root\nhostname 203.0.113.7\nport 22014\n",
            &["203.0.113.7", "203.0.113.7:22014"],
        );
        check("a.example:7", "hostname a.example\nport 7\n", &["a.example", "a.example:7"]);
        check("[2001:db8::7]:9", "hostname 2001:db8::7\n", &["2001:db8::7", "[2001:db8::7]:9"]);
    }
}
