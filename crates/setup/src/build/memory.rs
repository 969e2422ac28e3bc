//! Memory of a process and its descendants.

use std::collections::HashMap;

/// Resident bytes of a process and its descendants; `None` without /proc. Shared pages are counted for each of them.
pub(super) fn of_tree(root: u32) -> Option<u64> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Processes that ended in the meantime are not counted.
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut bytes, mut pending) = (0, vec![root]);
    while let Some(pid) = pending.pop() {
        bytes += resident(pid).unwrap_or(0);
        pending.extend(children.remove(&pid).unwrap_or_default());
    }
    (bytes > 0).then_some(bytes)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name is in parentheses and may contain any character.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    #[test]
    fn children_are_counted() {
        let alone = super::of_tree(std::process::id()).unwrap();
        assert!(alone > 1 << 16, "{alone}");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = super::of_tree(child.id()).unwrap();
        let with_child = super::of_tree(std::process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(of_child > 0 && with_child > of_child, "{of_child} of {with_child}");
        assert_eq!(super::of_tree(u32::MAX), None);
    }
}
