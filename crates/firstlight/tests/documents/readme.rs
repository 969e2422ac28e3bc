//! The README's shape: use comes before figures, and each figure links its run.

use super::root;

#[test]
fn readme_starts_with_use_and_links_the_run_of_each_figure() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let sections: Vec<(&str, &str)> =
        readme.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect();
    let titles: Vec<&str> = sections.iter().map(|(title, _)| *title).collect();
    let figures = titles.iter().position(|title| *title == "Figures").unwrap();
    let install = titles.iter().position(|title| *title == "Install").unwrap();
    assert!(install == 0 && figures > 4, "{titles:?}");
    let rows = |title: &str| -> Vec<&str> {
        let text = sections.iter().find(|(it, _)| *it == title).unwrap().1;
        let tables = text.split("\n\n").map(str::trim).filter(|it| it.starts_with("| "));
        tables.flat_map(|table| table.lines().skip(2)).collect()
    };
    assert!(rows("Figures").len() >= 10);
    for row in rows("Figures") {
        assert!(row.contains("](benchmarks/runs/"), "a figure without its run: {row}");
    }
    for vendor in ["NVIDIA", "Jetson", "x86-64", "Arm", "Apple", "AMD"] {
        assert!(rows("Supported hardware").iter().any(|row| row.contains(vendor)), "{vendor}");
    }
}

#[test]
fn readme_lists_every_command() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let table = readme.split("\n## Commands\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_firstlight")).arg("--help").output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    let command = |line: &str| {
        let rest = line.strip_prefix("  ")?;
        let word = rest.split(' ').next()?;
        let is_command = rest.contains("   ") && word.starts_with(|it: char| it.is_lowercase());
        is_command.then(|| word.to_owned())
    };
    let commands: Vec<String> = help.lines().filter_map(command).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands.iter().filter(|it| *it != "completions") {
        assert!(
            table.contains(&format!("`{command}`")),
            "`{command}` is not in the table of commands"
        );
    }
}

#[test]
fn lines_have_at_most_140_characters() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    for line in readme.lines() {
        assert!(line.chars().count() <= 140, "{line}");
    }
}
