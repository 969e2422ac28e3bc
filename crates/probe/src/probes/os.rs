//! Operating system, kernel, architecture and host name.

use crate::Source;
use crate::source::Command;
use facts::{Fact, Machine, Platform};
use std::time::Duration;

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    let (system, architecture, from) = uname(source).unwrap_or_default();
    machine.platform = Platform::from_uname(&system, &architecture);
    if machine.platform == Platform::Unknown {
        machine.notes.push(if from.is_empty() {
            "neither /proc/sys/kernel nor uname tells the operating system and the processor architecture".to_string()
        } else {
            format!("operating system `{system}` on `{architecture}` ({from}) is none that firstlight knows")
        });
    }
    if system == "Darwin" {
        macos(source, machine);
    } else {
        linux(source, machine);
    }
}

/// Kernel name, machine architecture, and their source.
fn uname(source: &Source) -> Option<(String, String, String)> {
    // Linux 6.1 and later have the architecture in a file, which avoids a process.
    if let (Some(system), Some(architecture)) =
        (source.word("/proc/sys/kernel/ostype"), source.word("/proc/sys/kernel/arch"))
    {
        return Some((system, architecture, "/proc/sys/kernel/arch".to_string()));
    }
    let command = Command {
        record: "uname",
        program: "uname",
        args: &["-s", "-m"],
        limit: Duration::from_secs(5),
    };
    if let Some((system, architecture)) = source.run(&command).ok().as_deref().and_then(parse_uname)
    {
        // A program translated by Rosetta sees x86_64; the flag has the machine's architecture.
        if system == "Darwin" && source.sysctl().is_set("hw.optional.arm64") {
            return Some((system, "arm64".to_string(), "sysctl hw.optional.arm64".to_string()));
        }
        return Some((system, architecture, "uname -s -m".to_string()));
    }
    // A container without uname on an older kernel: the program's build target is used.
    source.is_live().then(|| {
        let (system, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
        (
            system.to_string(),
            architecture.to_string(),
            "what this program was built for".to_string(),
        )
    })
}

/// Both words of `uname -s -m`.
pub(crate) fn parse_uname(text: &str) -> Option<(String, String)> {
    let mut words = text.split_whitespace();
    Some((words.next()?.to_string(), words.next()?.to_string()))
}

fn linux(source: &Source, machine: &mut Machine) {
    machine.host = source
        .word("/proc/sys/kernel/hostname")
        .map(|host| Fact::new(host, "/proc/sys/kernel/hostname"));
    machine.os.kernel = source
        .word("/proc/sys/kernel/osrelease")
        .map(|release| Fact::new(release, "/proc/sys/kernel/osrelease"));
    for file in ["/etc/os-release", "/usr/lib/os-release"] {
        let Some(text) = source.text(file) else { continue };
        let fact = |key| Some(Fact::new(os_release_value(&text, key)?, format!("{file} {key}")));
        machine.os.name = fact("PRETTY_NAME").or_else(|| fact("NAME"));
        machine.os.id = fact("ID");
        machine.os.version = fact("VERSION_ID");
        return;
    }
    if machine.platform != Platform::Unknown {
        machine.notes.push("no /etc/os-release: the distribution is unknown".to_string());
    }
}

/// One value of os-release, without its quotes.
pub(crate) fn os_release_value(text: &str, key: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='))?;
    let value = value.trim();
    let value = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .or_else(|| value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')))
        .unwrap_or(value);
    (!value.is_empty()).then(|| value.to_string())
}

fn macos(source: &Source, machine: &mut Machine) {
    let sysctl = source.sysctl();
    let fact =
        |name: &str| Some(Fact::new(sysctl.word(name)?.to_string(), format!("sysctl {name}")));
    machine.host = fact("kern.hostname");
    machine.os.kernel = fact("kern.osrelease");
    let command =
        Command { record: "sw_vers", program: "sw_vers", args: &[], limit: Duration::from_secs(5) };
    match source.run(&command) {
        Ok(text) => {
            machine.os.id = Some(Fact::new("macos".to_string(), "sw_vers ProductName"));
            machine.os.version = sw_vers_value(&text, "ProductVersion")
                .map(|version| Fact::new(version, "sw_vers ProductVersion"));
            machine.os.name = sw_vers_value(&text, "ProductName").map(|name| {
                let version = machine.os.version.as_ref().map(|version| version.value.as_str());
                Fact::new(
                    format!("{name} {}", version.unwrap_or_default()).trim_end().to_string(),
                    "sw_vers",
                )
            });
        }
        Err(error) => machine.notes.push(format!("sw_vers {error}: the macOS version is unknown")),
    }
}

/// One value of `sw_vers`.
pub(crate) fn sw_vers_value(text: &str, key: &str) -> Option<String> {
    let value =
        text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(':'))?.trim();
    (!value.is_empty()).then(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::{os_release_value, parse_uname, sw_vers_value};

    #[test]
    fn os_release_quotes() {
        let check = |text, key, expect: Option<&str>| {
            assert_eq!(os_release_value(text, key).as_deref(), expect, "{text:?} {key}");
        };
        let ubuntu = "PRETTY_NAME=\"Ubuntu 24.04.3 LTS\"\nVERSION_ID='24.04'\nID_LIKE=debian\nID=ubuntu\nEMPTY=\n";
        check(ubuntu, "PRETTY_NAME", Some("Ubuntu 24.04.3 LTS"));
        check(ubuntu, "VERSION_ID", Some("24.04"));
        check(ubuntu, "ID", Some("ubuntu"));
        check(ubuntu, "EMPTY", None);
        check("ID=\"", "ID", Some("\""));
    }

    #[test]
    fn commands() {
        assert_eq!(parse_uname("Darwin arm64\n"), Some(("Darwin".into(), "arm64".into())));
        assert_eq!(parse_uname("Linux"), None);
        let text = "ProductName:\t\tmacOS\nProductVersion:\t\t15.6\nBuildVersion:\t\t24G84\n";
        assert_eq!(sw_vers_value(text, "ProductVersion").as_deref(), Some("15.6"));
        assert_eq!(sw_vers_value(text, "Product"), None);
    }
}
