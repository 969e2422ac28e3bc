//! The processes that held GPU memory when the machine was read.

use crate::document::{Block, Prose, Table};
use crate::format;
use crate::run::{FACTS_FILE, Run};
use facts::{GpuMemory, GpuProcess, ProcessReport};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let machine = &run.doctor.machine;
    // Problems with processes are shown as findings.
    let report = ProcessReport::new(machine, Vec::new());
    let unread = machine
        .driver
        .as_ref()
        .and_then(|driver| driver.no_answer.as_ref().or(driver.nvml_error.as_ref()));
    if let Some(words) = unread {
        let words = Prose::new()
            .text("Which processes have GPU memory could not be read in full: ")
            .text(&words.value)
            .text(" (")
            .file(FACTS_FILE)
            .text(").");
        return vec![Block::Paragraph(words)];
    }
    if report.gpus.is_empty() {
        return Vec::new();
    }
    let mut blocks = vec![Block::Table(gpus(&report.gpus))];
    if report.processes.is_empty() {
        let words = Prose::new().text("No process had GPU memory (").file(FACTS_FILE).text(").");
        blocks.push(Block::Paragraph(words));
    } else {
        blocks.push(Block::Table(processes(&report.processes)));
    }
    let notes: Vec<Prose> = report.notes.iter().map(|note| Prose::from(note.as_str())).collect();
    if !notes.is_empty() {
        blocks.push(Block::List(notes));
    }
    blocks
}

fn mib(bytes: Option<u64>) -> Prose {
    Prose::from(bytes.map_or(format::ABSENT.to_owned(), |bytes| (bytes >> 20).to_string()))
}

fn gpus(gpus: &[GpuMemory]) -> Table {
    let caption = Prose::new().text("Memory of each GPU, from ").file(FACTS_FILE).text(".");
    let head = [">GPU", "Name", ">MiB in use", ">MiB in all", ">MiB of no visible process"];
    let mut table = Table::new(caption, &head);
    for gpu in gpus {
        table.row(vec![
            Prose::from(gpu.gpu.to_string()),
            Prose::from(gpu.name.as_str()),
            mib(gpu.used_bytes),
            mib(gpu.total_bytes),
            mib(gpu.unseen_bytes),
        ]);
    }
    table
}

fn processes(processes: &[GpuProcess]) -> Table {
    let caption = Prose::new().text("Processes with GPU memory, from ").file(FACTS_FILE).text(".");
    let head = [">GPU", ">PID", ">MiB", ">Age", "Parent", "Command", "Container or service"];
    let mut table = Table::new(caption, &head);
    for process in processes {
        let age = process.age_seconds.as_ref().map(|age| format::duration(age.value as f64 * 1e3));
        let parent =
            process.parent.as_ref().map(|fact| format!("{} {}", fact.value.0, fact.value.1));
        let command = process.command.as_ref().or(process.name.as_ref());
        let place = process.container.as_ref().or(process.unit.as_ref());
        for part in &process.uses {
            table.row(vec![
                Prose::from(part.gpu.to_string()),
                Prose::from(process.pid.to_string()),
                mib(part.bytes),
                Prose::from(age.clone().unwrap_or(format::ABSENT.to_owned())),
                Prose::from(parent.clone().unwrap_or(format::ABSENT.to_owned())),
                match command {
                    Some(fact) => Prose::new().code(&fact.value),
                    None => Prose::from("not to be seen from here"),
                },
                Prose::from(place.map_or(format::ABSENT, |fact| fact.value.as_str())),
            ]);
        }
    }
    table
}
