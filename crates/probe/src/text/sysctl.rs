use std::collections::BTreeMap;

/// `name: value` lines of macOS's `sysctl`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sysctl {
    values: BTreeMap<String, String>,
}

impl Sysctl {
    pub(crate) fn parse(text: &str) -> Self {
        let values = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim().to_string(), value.trim().to_string()))
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .collect();
        Self { values }
    }

    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.word(name)?.parse().ok()
    }

    /// Whether a flag exists and is not 0.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.number(name).is_some_and(|value| value != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::Sysctl;

    #[test]
    fn lines_without_a_value_are_left_out() {
        let sysctl = Sysctl::parse(
            "hw.memsize: 68719476736\nhw.optional.neon: 1\nkern.boottime:\nnoise\n: 3\n",
        );
        assert_eq!(sysctl.number("hw.memsize"), Some(68_719_476_736));
        assert!(sysctl.is_set("hw.optional.neon"));
        assert_eq!(sysctl.word("kern.boottime"), None);
        assert_eq!(sysctl.values.len(), 2);
    }
}
