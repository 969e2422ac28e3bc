//! Xid numbers of NVIDIA's driver. Only the number decides, not the text after it.

use super::{Entity, Form, form};
use crate::host;
use crate::rules::PastedError;
use facts::Machine;
use knowledge::xids::{self, Action, Origin, Weight};

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("Xid (*): {number}, GPU recovery action changed from * to * ({action})", recovery),
        form("Xid (*): {number}, *recovery action changed from * to {action}", recovery),
        form("Xid (*): {number}", numbered),
        form("Xid error: {number}", numbered),
        form("Xid error {number}", numbered),
        form("Xid: {number}", numbered),
        form("Xid={number}", numbered),
        form("Xid {number}", numbered),
        form("SXid (*): {number}", switch),
    ]
}

/// The digits that a word begins with.
fn digits(word: &str) -> Option<u32> {
    let end = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    word[..end].parse().ok()
}

fn numbered(seen: &PastedError, _: &'static str) -> Option<Entity> {
    // Databases count transactions by an xid in lower case.
    (seen.text.contains("Xid") || seen.text.contains("XID")).then_some(())?;
    let number = digits(seen.word("number")?)?;
    // The driver's line itself contains the recovery action.
    if number == 154 {
        return recovery(seen, "");
    }
    let entity = Entity::new("xid", format!("Xid {number}")).rule("xid");
    let Some(known) = xids::xid(number) else {
        return Some(entity.rank(1).meaning(format!(
            "Xid {number} is not in the copy of NVIDIA's catalog that firstlight has (of 2025-10-29), or is listed there as unused."
        )).fix(log_commands(seen.machine())));
    };
    let rank = match (known.weight, known.of) {
        (_, Origin::Cleanup) => 1,
        (Weight::Note, _) => 2,
        (Weight::Warning, _) => 3,
        (Weight::Error, _) => 4,
    };
    let here = seen
        .machine()
        .xids
        .as_ref()
        .map(|log| (log.value.iter().find(|xid| xid.number == number), &log.source));
    let mut entity = entity.rank(rank).meaning(meaning(number)).fix(fix(seen.machine(), number));
    entity.confirmed_here = match here {
        Some((Some(line), source)) => {
            entity = entity.evidence(format!("{}: {}", line.pci_bus, line.words), source.clone());
            Some(true)
        }
        // The ring buffer may have dropped the line.
        Some((None, _)) | None => None,
    };
    Some(entity)
}

/// The meaning of a number and NVIDIA's recommended action.
pub(crate) fn meaning(number: u32) -> String {
    let Some(known) = xids::xid(number) else { return String::new() };
    let origin = match known.of {
        Origin::Program => {
            "It comes from the program that ran on the GPU (a wrong address or instruction), and seldom from the GPU itself."
        }
        Origin::Cleanup => "It follows another error, which the log has as well.",
        Origin::Memory => "It is about the GPU's memory.",
        Origin::Link => "It is about NVLink or the chip-to-chip link.",
        Origin::Driver => "It comes from the driver or the GPU's firmware.",
        Origin::Lost => "The GPU or its firmware stopped responding.",
    };
    format!("Xid {number}: {}. {origin} NVIDIA's action: {}.", known.words, known.action.as_str())
}

/// Commands for a number.
pub(crate) fn fix(machine: &Machine, number: u32) -> Vec<String> {
    let mut lines: Vec<String> = host::driver_location_remark(machine).into_iter().collect();
    let Some(known) = xids::xid(number) else { return log_commands(machine) };
    lines.push(LOG.into());
    match known.of {
        Origin::Memory => {
            lines.push("nvidia-smi --query --display=ECC,ROW_REMAPPER,PAGE_RETIREMENT".into());
        }
        Origin::Link => lines.push("nvidia-smi nvlink --errorcounters".into()),
        Origin::Program => lines.push("compute-sanitizer python your_program.py".into()),
        Origin::Cleanup | Origin::Driver | Origin::Lost => {}
    }
    lines.extend(action(known.action));
    if known.of == Origin::Lost {
        lines.push(
            "# where it comes back: power cables and supply, heat, the seat of the board or riser, the firmware of the mainboard; `sudo nvidia-smi -lgc 300,1500` \
             limits the clocks as a test"
                .into(),
        );
    }
    lines
}

const LOG: &str = "sudo dmesg | grep -E 'NVRM|Xid'";

fn action(action: Action) -> Vec<String> {
    match action {
        Action::ResetGpu => vec![
            "# with no program on the GPU (`firstlight ps` lists them):".into(),
            "sudo nvidia-smi --gpu-reset --id=BUS  # the address in brackets in the log".into(),
        ],
        Action::RestartHost | Action::RestartVm => vec!["sudo reboot".into()],
        Action::UpdateSoftware => {
            vec!["nvidia-smi --query-gpu=driver_version,vbios_version --format=csv".into()]
        }
        _ => Vec::new(),
    }
}

fn log_commands(machine: &Machine) -> Vec<String> {
    host::driver_location_remark(machine).into_iter().chain([LOG.into()]).collect()
}

/// Xid 154 states the recovery action that the driver requests.
fn recovery(seen: &PastedError, _: &'static str) -> Option<Entity> {
    (digits(seen.word("number")?)? == 154).then_some(())?;
    let lower = seen.text.to_ascii_lowercase();
    let after = lower.find("recovery action changed").map_or("", |at| &lower[at..]);
    // The first value is the state before; the second is the current one.
    let target = after.find(" to ").map_or("", |at| &after[at..]);
    let target: String = target.chars().take(80).collect();
    let host = host::driver_location_remark(seen.machine());
    let (action, commands): (&str, &[&str]) = if target.contains("reboot") {
        ("reboot the node", &["sudo reboot"])
    } else if target.contains("drain and reset") {
        (
            "take no new work, let what runs end, then reset the GPU",
            &[
                "firstlight ps",
                "sudo nvidia-smi --gpu-reset --id=BUS  # the address in brackets in the log",
            ],
        )
    } else if target.contains("drain p2p") {
        (
            "end the programs that use peer-to-peer access over this GPU; no reset is needed",
            &["firstlight ps"],
        )
    } else if target.contains("reset") || target.contains("flr") {
        (
            "reset the GPU when no program uses it",
            &[
                "firstlight ps",
                "sudo nvidia-smi --gpu-reset --id=BUS  # the address in brackets in the log",
            ],
        )
    } else if target.contains("(none)") {
        ("nothing: the GPU needs no recovery any more", &["nvidia-smi"])
    } else {
        (
            "read it from the line, or from `nvidia-smi -q` under `GPU Recovery Action`",
            &["nvidia-smi --query | grep --ignore-case recovery"],
        )
    };
    Some(
        Entity::new("xid", "Xid 154")
            .rule("xid")
            .rank(5)
            .meaning(format!(
                "Xid 154: GPU Recovery Action Changed. It is not an error itself: it states what the errors before it require. Here: {action}."
            ))
            .fix(host)
            .fix(commands.iter().copied()),
    )
}

fn switch(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let number = digits(seen.word("number")?)?;
    Some(
        Entity::new("sxid", format!("SXid {number}"))
            .meaning(format!(
                "SXid {number} is an error of an NVSwitch. NVIDIA lists these numbers in the Fabric Manager user guide; a fatal one needs a reset of all GPUs and NVSwitches, or a reboot."
            ))
            .fix([
                "sudo dmesg | grep -E 'SXid|Xid'",
                "systemctl status nvidia-fabricmanager",
                "nvidia-smi nvlink --errorcounters",
            ]),
    )
}
