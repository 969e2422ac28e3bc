//! Scripts of a wheel, which find the environment's interpreter next to themselves: the environment is created in one
//! folder and used in another.

/// A shell runs this as a command that starts the interpreter; Python reads it as an unused string.
const HEAD: &str = "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n";

/// A wheel's script with a generic interpreter (`#!python`), changed to the environment's; `None` if it stays
/// unchanged.
pub(super) fn headed(script: &[u8]) -> Option<Vec<u8>> {
    let rest = script.strip_prefix(b"#!python")?;
    let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
    Some([HEAD.as_bytes(), &rest[end..]].concat())
}

/// The scripts of an `entry_points.txt`, by their names.
///
/// # Errors
/// A name is not a file name, or its target is not `module:object`.
pub(super) fn of_entry_points(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut wanted = false;
    let mut scripts = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            wanted = matches!(section.trim(), "console_scripts" | "gui_scripts");
        } else if wanted && !line.is_empty() && !line.starts_with(['#', ';']) {
            let wrong = || format!("entry_points.txt has `{line}` instead of NAME = MODULE:OBJECT");
            let (name, value) = line.split_once('=').ok_or_else(wrong)?;
            // Extras after it are requirements, which the plan has resolved.
            let value = value.split('[').next().unwrap_or(value);
            let (module, object) = value.split_once(':').ok_or_else(wrong)?;
            let (name, module, object) = (name.trim(), module.trim(), object.trim());
            let file = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
            if !(file && is_path(module) && is_path(object)) {
                return Err(wrong());
            }
            let first = object.split('.').next().unwrap_or(object);
            let text =
                format!("{HEAD}import sys\nfrom {module} import {first}\nsys.exit({object}())\n");
            scripts.push((name.to_owned(), text));
        }
    }
    Ok(scripts)
}

/// Names joined by dots.
fn is_path(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    text.split('.').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_points_become_scripts_or_are_refused() {
        let text = "[other]\nx = y:z\n[console_scripts]\n# said\na-b = p.q:R.main [extra]\n\n[gui_scripts]\nc=p:m\n";
        let scripts = of_entry_points(text).unwrap();
        let names: Vec<&str> = scripts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a-b", "c"]);
        assert!(
            scripts[0].1.ends_with("from p.q import R\nsys.exit(R.main())\n"),
            "{}",
            scripts[0].1
        );
        for wrong in
            ["../../x = p:m", ".x = p:m", "x = p", "x", "x = p:m()", "x = p;q:m", "x = p:1"]
        {
            let found = of_entry_points(&format!("[console_scripts]\n{wrong}\n")).unwrap_err();
            assert!(found.contains(wrong), "{found}");
        }
    }

    #[test]
    fn scripts_without_an_interpreter_get_the_environments() {
        let headed =
            |script: &str| headed(script.as_bytes()).map(|it| String::from_utf8(it).unwrap());
        assert_eq!(headed("#!python -E\nimport a\n"), Some(format!("{HEAD}import a\n")));
        assert_eq!(headed("#!pythonw"), Some(HEAD.to_owned()));
        assert_eq!(headed("#!/usr/bin/python3\n"), None);
        assert_eq!(headed("\x7fELF"), None);
    }
}
