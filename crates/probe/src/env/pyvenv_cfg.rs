//! pyvenv.cfg, which identifies a virtual environment.

/// The content of pyvenv.cfg, written by venv, virtualenv or uv, whose keys differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PyvenvCfg {
    /// Folder of the interpreter the environment was made from.
    pub(crate) home: Option<String>,
    /// `3.12.3`, without virtualenv's `.final.0`.
    pub(crate) version: Option<String>,
    /// Version of the uv that created it.
    pub(crate) uv: Option<String>,
    /// Whether the base installation's packages are visible.
    pub(crate) system_site_packages: bool,
}

impl PyvenvCfg {
    pub(crate) fn parse(text: &str) -> Self {
        let mut cfg = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim();
            if value.is_empty() {
                continue;
            }
            match key.trim().to_ascii_lowercase().as_str() {
                "home" => cfg.home = Some(value.to_string()),
                // venv writes `version`; uv and virtualenv write `version_info`.
                "version" | "version_info" => cfg.version = release(value).or(cfg.version),
                "uv" => cfg.uv = Some(value.to_string()),
                "include-system-site-packages" => {
                    cfg.system_site_packages = value.eq_ignore_ascii_case("true");
                }
                _ => {}
            }
        }
        cfg
    }
}

/// `3.12.3` of `3.12.3.final.0`; a pre-release keeps its suffix: `3.14.0rc1`.
fn release(value: &str) -> Option<String> {
    let parts: Vec<&str> = value.split('.').take(3).collect();
    let digits = |part: &&str| part.starts_with(|c: char| c.is_ascii_digit());
    (parts.len() >= 2 && parts.iter().all(digits)).then(|| parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::PyvenvCfg;

    fn check(
        text: &str,
        home: Option<&str>,
        version: Option<&str>,
        uv: Option<&str>,
        system: bool,
    ) {
        let cfg = PyvenvCfg::parse(text);
        assert_eq!(cfg.home.as_deref(), home);
        assert_eq!(cfg.version.as_deref(), version);
        assert_eq!(cfg.uv.as_deref(), uv);
        assert_eq!(cfg.system_site_packages, system);
    }

    #[test]
    fn venv_virtualenv_and_uv() {
        check(
            "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\nexecutable = /usr/bin/python3.12\n",
            Some("/usr/bin"),
            Some("3.12.3"),
            None,
            false,
        );
        check(
            "home = /usr/bin\nimplementation = CPython\nversion_info = 3.10.12.final.0\nversion = 3.10.12\ninclude-system-site-packages = True\n",
            Some("/usr/bin"),
            Some("3.10.12"),
            None,
            true,
        );
        check(
            "home = /opt/py/bin\nimplementation = CPython\nuv = 0.9.5\nversion_info = 3.14.0rc1\nprompt = a=b\n",
            Some("/opt/py/bin"),
            Some("3.14.0rc1"),
            Some("0.9.5"),
            false,
        );
        check("version = three\nhome =\nnoise", None, None, None, false);
    }
}
