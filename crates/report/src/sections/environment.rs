//! The machine and its Python environments: every fact with its source.

use crate::document::{Block, Prose, Table, slug};
use crate::format;
use crate::run::{FACTS_FILE, Run};
use crate::stack::five_lines;
use facts::{EnvKind, EnvManager, Fact, Machine, MachineKind, PyEnv};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let machine = &run.doctor.machine;
    let mut blocks = vec![
        Block::Heading { id: "machine".to_owned(), words: Prose::from("Machine") },
        Block::Table(about(machine)),
        Block::Heading { id: "cuda".to_owned(), words: Prose::from("CUDA versions, told apart") },
    ];
    blocks.push(cuda(machine, &run.doctor.envs));
    if !machine.libraries.is_empty() {
        let summary = Prose::from(format!(
            "{} found",
            format::count(machine.libraries.len(), "accelerator library")
        ));
        blocks.push(Block::Details { summary, blocks: vec![Block::Table(libraries(machine))] });
    }
    let words = format!("{} read", format::count(run.doctor.envs.len(), "Python environment"));
    blocks.push(Block::Heading { id: "envs".to_owned(), words: Prose::from(words) });
    if run.doctor.envs.is_empty() {
        blocks.push(Block::Paragraph(
            Prose::new().text("No Python environment was found (").file(FACTS_FILE).text(")."),
        ));
    }
    for (place, env) in run.doctor.envs.iter().enumerate() {
        blocks.extend(environment(place, env));
    }
    blocks
}

fn from_facts(words: &str) -> Prose {
    Prose::new().text(format!("{words}, from ")).file(FACTS_FILE).text(".")
}

fn sourced(what: &str, value: String, source: &str) -> Vec<Prose> {
    vec![Prose::from(what), Prose::from(value), Prose::new().code(source)]
}

/// The facts about a machine that are shown, in order: name, value, source.
fn machine_facts(machine: &Machine) -> Vec<(String, String, String)> {
    let mut facts: Vec<(String, String, String)> = Vec::new();
    let mut add = |name: &str, value: String, source: &str| {
        facts.push((name.to_owned(), value, source.to_owned()))
    };
    add("Platform", machine.platform.to_string(), "uname");
    add("Kind", kind(machine.kind).to_owned(), "platform and GPUs together");
    add("Backend", machine.backend.to_string(), "GPUs below; CUDA before Metal before CPU");
    let os = &machine.os;
    for (name, fact) in [
        ("System", &os.name),
        ("Kernel", &os.kernel),
        ("C library", &os.libc),
        ("Processor", &machine.cpu.model),
    ] {
        fact.iter().for_each(|fact| add(name, fact.value.clone(), &fact.source));
    }
    let cpu = &machine.cpu;
    for (name, fact) in [
        ("Logical cores", &cpu.logical_cores),
        ("Physical cores", &cpu.physical_cores),
        ("Usable cores", &cpu.usable_cores),
    ] {
        fact.iter().for_each(|fact| add(name, fact.value.to_string(), &fact.source));
    }
    cpu.features.iter().for_each(|fact| add("Features", fact.value.join(" "), &fact.source));
    for cache in cpu.caches.iter().filter(|cache| cache.kind != "instruction") {
        add(
            &format!("L{} {} cache", cache.level, cache.kind),
            format::cache_size(cache.bytes),
            &cache.source,
        );
    }
    let memory = &machine.memory;
    for (name, fact) in [
        ("Memory", &memory.total_bytes),
        ("Memory available", &memory.available_bytes),
        ("Memory limit", &memory.limit_bytes),
    ] {
        fact.iter().for_each(|fact| add(name, format::bytes(fact.value), &fact.source));
    }
    for gpu in &machine.gpus {
        let name = format!("GPU {}", gpu.index);
        add(&name, gpu.name.value.clone(), &gpu.name.source);
        if let Some(fact) = &gpu.compute_capability {
            add(&format!("{name} compute capability"), version(fact.value), &fact.source);
        }
        for (what, fact) in
            [("memory", &gpu.memory_total_bytes), ("memory in use", &gpu.memory_used_bytes)]
        {
            fact.iter().for_each(|fact| {
                add(&format!("{name} {what}"), format::bytes(fact.value), &fact.source)
            });
        }
        if let Some(mig) = gpu.mig {
            add(
                &format!("{name} MIG"),
                if mig { "on" } else { "off" }.to_owned(),
                &gpu.name.source,
            );
        }
    }
    if machine.gpus.is_empty() {
        add("GPU", "none found".to_owned(), "driver and system files");
    }
    if let Some(driver) = &machine.driver {
        for (name, fact) in [
            ("Driver module", &driver.kernel_module),
            ("Driver library", &driver.user_library),
            ("NVML says", &driver.nvml_error),
        ] {
            fact.iter().for_each(|fact| add(name, fact.value.clone(), &fact.source));
        }
        if let Some(open) = &driver.open_module {
            add(
                "Driver module kind",
                if open.value { "open" } else { "proprietary" }.to_owned(),
                &open.source,
            );
        }
    }
    if let Some(virtualisation) = &machine.virtualisation {
        for (name, fact) in
            [("Container", &virtualisation.container), ("Virtual machine", &virtualisation.machine)]
        {
            fact.iter().for_each(|fact| add(name, fact.value.clone(), &fact.source));
        }
    }
    facts
}

pub(crate) fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

pub(crate) fn kind(kind: MachineKind) -> &'static str {
    match kind {
        MachineKind::X86Cuda => "x86-64 with an NVIDIA GPU",
        MachineKind::X86Cpu => "x86-64 without a GPU",
        MachineKind::ArmCuda => "64-bit Arm host with an NVIDIA GPU",
        MachineKind::ArmCpu => "64-bit Arm without a GPU",
        MachineKind::Jetson => "NVIDIA Jetson (Tegra)",
        MachineKind::AppleSilicon => "Apple Silicon",
        MachineKind::IntelMac => "Intel Mac",
        MachineKind::Unknown => "not a known kind",
    }
}

fn about(machine: &Machine) -> Table {
    let mut table = Table::new(from_facts("The machine"), &["Fact", "Value", "Read from"]);
    for (name, value, source) in machine_facts(machine) {
        table.row(sourced(&name, value, &source));
    }
    table
}

/// Three CUDA versions: the maximum that the driver accepts, the installed toolkit's, and the one that torch was built
/// for.
fn cuda(machine: &Machine, envs: &[PyEnv]) -> Block {
    let mut table = Table::new(
        from_facts("Three different things called the CUDA version"),
        &["Which", "Version", "Read from"],
    );
    if let Some(limit) = machine.driver.as_ref().and_then(|driver| driver.cuda_limit.as_ref()) {
        table.row(sourced("Highest the driver accepts", version(limit.value), &limit.source));
    }
    for toolkit in &machine.toolkits {
        let nvcc = if toolkit.has_nvcc { "" } else { " (without nvcc)" };
        let (value, source) = match &toolkit.version {
            Some(Fact { value, source }) => (value.clone(), source.clone()),
            None => ("version not found".to_owned(), toolkit.root.clone()),
        };
        table.row(sourced(
            &format!("Toolkit in {}, by {}", toolkit.root, toolkit.found_by),
            format!("{value}{nvcc}"),
            &source,
        ));
    }
    for env in envs {
        if let Some(torch) = &env.torch {
            let value = torch.cuda.clone().unwrap_or_else(|| "none: not a CUDA build".to_owned());
            table.row(sourced(
                &format!("torch {} in {}", torch.version, env.root),
                value,
                &torch.source,
            ));
        }
    }
    if table.rows.is_empty() {
        let words = Prose::new()
            .text("No NVIDIA driver, no CUDA toolkit and no torch were found (")
            .file(FACTS_FILE)
            .text(").");
        return Block::Paragraph(words);
    }
    Block::Table(table)
}

fn libraries(machine: &Machine) -> Table {
    let mut table = Table::new(
        from_facts("Libraries that accelerator stacks load"),
        &["Library", "Version", "File", "Found by"],
    );
    for library in &machine.libraries {
        table.row(vec![
            Prose::from(&library.name),
            Prose::from(library.version.as_deref().unwrap_or(format::ABSENT)),
            Prose::new().code(&library.path),
            Prose::from(&library.source),
        ]);
    }
    table
}

fn environment(place: usize, env: &PyEnv) -> Vec<Block> {
    let words = Prose::new().code(&env.root).text(format!(" ({})", describe(env)));
    let id = format!("env-{}-{}", place + 1, slug(&env.root));
    let mut stack =
        Table::new(from_facts("The accelerator stack"), &["What", "Version", "Read from"]);
    for (name, value, source) in five_lines(env) {
        stack.row(vec![Prose::new().code(name), Prose::from(value), Prose::new().code(source)]);
    }
    let mut blocks = vec![Block::Heading { id, words }, Block::Table(stack)];
    let summary = Prose::from(format!(
        "{} and {}",
        format::count(env.dists.len(), "package"),
        format::count(env.native_files.len(), "compiled file")
    ));
    if env.dists.is_empty() {
        blocks.push(Block::Paragraph(summary.text(" were found.")));
    } else {
        let mut table = Table::new(
            from_facts("Installed packages"),
            &["Package", "Version", "Wheel tags", "Installed by", ">Files"],
        );
        for dist in &env.dists {
            table.row(vec![
                Prose::from(&dist.name),
                Prose::from(&dist.version),
                Prose::from(dist.tags.join(" ")),
                Prose::from(dist.installer.as_deref().unwrap_or(format::ABSENT)),
                Prose::from(
                    dist.record_files
                        .map_or_else(|| format::ABSENT.to_owned(), |files| files.to_string()),
                ),
            ]);
        }
        blocks.push(Block::Details { summary, blocks: vec![Block::Table(table)] });
    }
    blocks
}

/// The kind of environment, how it was found, and its package manager.
pub(crate) fn describe(env: &PyEnv) -> String {
    let kind = match env.kind {
        EnvKind::Venv => "virtual environment",
        EnvKind::Conda => "conda environment",
        EnvKind::System => "system Python",
    };
    let manager = env.manager.as_ref().map_or("", |manager| match manager.value {
        EnvManager::Uv => ", managed by uv",
        EnvManager::Pip => ", managed by pip",
        EnvManager::Conda => ", managed by conda",
    });
    format!("{kind}, found by {}{manager}", env.found_by)
}
