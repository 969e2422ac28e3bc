//! Every parser with mutated real text and noise: none may panic, and written data reads back the same.
//!
//! 16 properties of 8,000 cases each: more than 100,000 cases in this crate alone.

use crate::cgroup::{Membership, parse_cpu_max, parse_memory_limit};
use crate::env::{egg_info, metadata, pyvenv_cfg, record, torch_version, wheel};
use crate::loader::parse_cache;
use crate::nvml::{Nvml, NvmlDevice, NvmlSnapshot};
use crate::probes::{
    apple_gpu, cpu, driver, gpu_nodes, kernel_log, libc, memory, nvidia_smi, os, processes, tegra,
    toolkits, virtualisation,
};
use crate::source::CommandError;
use crate::text;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;

const CASES: u32 = 8_000;

fn config() -> ProptestConfig {
    // A failing case is printed instead of stored in a file.
    ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() }
}

/// Fragments that are difficult for parsers.
const PIECES: &[&str] = &[
    "\n",
    "\r\n",
    "\n\n",
    ":",
    "=",
    ",",
    "\"",
    "'",
    "[",
    "]",
    "-",
    ".",
    ";",
    "\0",
    "\t",
    " ",
    "0x",
    "é",
    "\u{fffd}",
    "None",
    "18446744073709551616",
    "-1",
    "99999999999999999999999999",
    "/",
    "..",
    "%s",
];

/// A real text after up to a dozen changes, or noise.
fn mutated(seed: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((0u8..6, any::<Index>(), any::<Index>(), any::<u8>()), 0..12);
    let changed = changes.prop_map(move |changes| {
        let mut bytes = seed.to_vec();
        for (kind, at, other, byte) in changes {
            let (from, to) = (at.index(bytes.len() + 1), other.index(bytes.len() + 1));
            match kind {
                0 if from < bytes.len() => bytes[from] = byte,
                1 => bytes.insert(from, byte),
                2 => drop(bytes.drain(from.min(to)..from.max(to).min(from.min(to) + 40))),
                3 => bytes.truncate(from.max(to)),
                4 => {
                    let part = bytes[from.min(to)..from.max(to).min(from.min(to) + 200)].to_vec();
                    bytes.extend(part);
                }
                _ => {
                    drop(bytes.splice(from..from, PIECES[usize::from(byte) % PIECES.len()].bytes()))
                }
            }
        }
        bytes
    });
    prop_oneof![8 => changed, 1 => vec(any::<u8>(), 0..300)]
}

/// The same as text, decoded like a file.
fn text_like(seed: &'static str) -> impl Strategy<Value = String> {
    mutated(seed.as_bytes()).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

const METADATA: &str = "Metadata-Version: 2.4\nName: torch\nVersion: 2.11.0\nRequires-Python: >=3.10\nLicense: BSD\n        continued\nRequires-Dist: triton==3.6.0; platform_system == \"Linux\"\n\nBody: text\n";
const RECORD: &str = "torch/lib/libtorch.so,sha256=abc,123\n\"a,b\"\"c/x.so.1\",sha256=,7\n../../../bin/torchrun,sha256=z,9\ntorch-2.dist-info/RECORD,,\n";
const VERSION_PY: &str = "from typing import Optional\n\n__version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\ngit_version = '70d9'\nhip: Optional[str] = None\n";
const CPUINFO: &str = "processor\t: 0\nmodel name\t: AMD EPYC\nphysical id\t: 0\ncore id\t\t: 0\nflags\t\t: fma avx2 avx512_bf16\n\nprocessor\t: 1\nFeatures\t: asimd bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";
const SMI: &str = "index, name, uuid, compute_cap, driver_version, memory.total [MiB], memory.used [MiB], pci.bus_id, mig.mode.current\n0, NVIDIA H200, GPU-0, 9.0, 580.159.04, 143771 MiB, 0 MiB, 00000000:00:06.0, Disabled\n1, B, [N/A], [N/A], 5, [Not Supported], 1 MiB, x, [N/A]\n";
const SMI_TABLE: &str = "Sat Nov 21 02:46:29 2026\n| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04     CUDA Version: 13.0     |\n";

proptest! {
    #![proptest_config(config())]

    #[test]
    fn metadata_headers(text in text_like(METADATA)) {
        if let Ok(metadata) = metadata::Metadata::parse(&text) {
            prop_assert!(!metadata.name.is_empty() && !metadata.version.contains(char::is_whitespace));
            // Its own output reads back the same.
            let requires: String = metadata.requires.iter().map(|line| format!("Requires-Dist: {line}\n")).collect();
            let again = format!("Name: {}\nVersion: {}\n{requires}", metadata.name, metadata.version);
            let again = metadata::Metadata::parse(&again).unwrap();
            prop_assert_eq!((again.name, again.version), (metadata.name, metadata.version));
        }
        if let Some((name, version)) = metadata::of_folder_name(text.lines().next().unwrap_or_default()) {
            prop_assert!(!name.is_empty() && !version.is_empty());
        }
    }

    #[test]
    fn record_lines(text in text_like(RECORD)) {
        let record = record::Record::parse(&text);
        prop_assert!(record.files as usize <= text.lines().count());
        prop_assert!(record.native.len() <= record.files as usize);
        prop_assert!(record.native.iter().all(|(path, _)| record::is_native(path)));
        prop_assert!(record.top_level.is_sorted());
    }

    #[test]
    fn record_paths_read_back(path in "[ -~&&[^\n]]{1,40}", size in any::<u64>()) {
        // The format of Python's csv module.
        let path = format!("{path}/x.so");
        let quoted = format!("\"{}\",sha256=x,{size}\n", path.replace('"', "\"\""));
        prop_assert_eq!(record::Record::parse(&quoted).native, vec![(path, Some(size))]);
    }

    #[test]
    fn wheel_and_egg_info(text in text_like("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-manylinux_2_28_x86_64\nTag: py3-none-any\n[extra:os_name == 'nt']\n../ffpa/_C.so\n")) {
        prop_assert!(wheel::parse_tags(&text).iter().all(|tag| tag.split('-').count() == 3));
        prop_assert!(egg_info::parse_requires(&text).len() <= text.lines().count());
        let (files, native) = egg_info::parse_installed_files(&text);
        prop_assert!(native.len() <= files as usize);
    }

    #[test]
    fn torch_version_py(text in text_like(VERSION_PY)) {
        if let Some(torch) = torch_version::parse(&text, "") {
            // A value with the quote of the rewritten file would end early.
            prop_assume!(![Some(&torch.version), torch.cuda.as_ref()].into_iter().flatten().any(|value| value.contains('"')));
            let cuda = torch.cuda.as_deref().map_or("None".to_string(), |cuda| format!("\"{cuda}\""));
            let again = format!("__version__ = \"{}\"\ncuda: Optional[str] = {cuda}\n", torch.version);
            let again = torch_version::parse(&again, "").unwrap();
            prop_assert_eq!((again.version, again.cuda), (torch.version, torch.cuda));
        }
    }

    #[test]
    fn pyvenv_cfg_lines(text in text_like("home = /usr/bin\nimplementation = CPython\nuv = 0.9.5\nversion_info = 3.12.3.final.0\ninclude-system-site-packages = true\n")) {
        let cfg = pyvenv_cfg::PyvenvCfg::parse(&text);
        if let Some(version) = &cfg.version {
            prop_assert!((2..=3).contains(&version.split('.').count()), "{}", version);
        }
        prop_assert!(cfg.home.is_none_or(|home| !home.is_empty()));
    }

    #[test]
    fn nvidia_smi_text(csv in text_like(SMI), table in text_like(SMI_TABLE)) {
        let rows = nvidia_smi::parse_query(&csv);
        prop_assert!(rows.len() <= csv.lines().count());
        prop_assert!(rows.iter().all(|row| row.memory_total.is_none_or(|bytes| bytes % (1 << 20) == 0)));
        prop_assert!(rows.iter().all(|row| row.name.as_ref().is_none_or(|name| !name.starts_with('['))));
        let _ = nvidia_smi::parse_cuda_limit(&table);
        let _ = nvidia_smi::parse_failure(&table);
    }

    #[test]
    fn proc_cpuinfo(text in text_like(CPUINFO)) {
        let info = text::cpuinfo::CpuInfo::parse(&text);
        prop_assert!(info.features.is_sorted());
        prop_assert!(info.cores.len() + info.processors as usize <= text.lines().count());
    }

    #[test]
    fn proc_meminfo_and_status(text in text_like("MemTotal:       131981020 kB\nMemAvailable:   131451656 kB\nCpus_allowed_list:\t0-3,8,10-11\n"), kibibytes in 0..u64::MAX / 1024) {
        let _ = memory::parse_meminfo(&text, "MemTotal");
        let _ = cpu::parse_affinity(&text);
        let line = format!("MemTotal: {kibibytes} kB\n");
        prop_assert_eq!(memory::parse_meminfo(&line, "MemTotal"), Some(kibibytes * 1024));
    }

    #[test]
    fn proc_cgroup(text in text_like("12:cpu,cpuacct:/docker/4f1\n4:memory:/docker/4f1\n0::/system.slice/a.scope\n"), quota in 1i64.., period in 1i64..) {
        let _ = Membership::parse(&text);
        let _ = virtualisation::container_of_cgroup(&text);
        prop_assert!(parse_memory_limit(&text).is_none_or(|bytes| bytes < 1 << 62));
        let cores = parse_cpu_max(&format!("{quota} {period}"));
        prop_assert!(cores.is_none_or(|cores| i128::from(cores) * i128::from(period) >= i128::from(quota)));
    }

    #[test]
    fn proc_driver(text in text_like("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)\nModel: \t\t NVIDIA H200\nGPU UUID: \t GPU-0\n")) {
        if let Some(module) = driver::parse_proc_version(&text) {
            prop_assert!(text::is_dotted_number(&module.version));
        }
        let information = gpu_nodes::parse_information(&text);
        prop_assert!(information.model.is_none_or(|model| !model.is_empty()));
    }

    #[test]
    fn loader_cache(bytes in mutated(include_bytes!("../fixtures/ld.so.cache"))) {
        prop_assert!(parse_cache(&bytes).iter().all(|entry| entry.path.starts_with('/')));
    }

    #[test]
    fn nvml_records_read_back(
        gpus in vec((option::of("[A-Za-z0-9][A-Za-z0-9 =-]{0,20}[A-Za-z0-9]"), option::of(any::<u64>()), option::of((0u32..99, 0u32..99)), option::of(any::<bool>())), 0..4),
        text in text_like("library = a\ndriver = 1.2\ncuda = 13.0\n\n[gpu]\nname = x\nmemory_total = 5\nmig = true\npcie = 1 8 5 -\nnvlink = up 26562 0:1\necc_volatile = 0 1\nremapped = 0 1 true false\npair = 0 1 SYS nvlink\n"),
    ) {
        let gpus = gpus.into_iter().map(|(name, memory_total, compute_capability, mig)| {
            NvmlDevice { name, memory_total, compute_capability, mig, ..NvmlDevice::default() }
        });
        let nvml = Nvml::Answered(NvmlSnapshot { library: "l".into(), gpus: gpus.collect(), ..NvmlSnapshot::default() });
        prop_assert_eq!(&Nvml::parse(&nvml.record()), &nvml);
        let parsed = Nvml::parse(&text);
        prop_assert_eq!(Nvml::parse(&parsed.record()), parsed);
    }

    #[test]
    fn proc_of_a_process(
        stat in text_like("4711 (VLLM::Engine) C) S 1 4711 4711 0 -1 4194560 1 0 0 0 10 5 0 0 20 0 8 0 123456 0 0\n"),
        status in text_like("Name:\tpython\nState:\tS (sleeping)\nUid:\t1000\t1000\t1000\t1000\n"),
        cmdline in mutated(b"/v/bin/python\0-u\0-m\0vllm.entrypoints.api_server\0--port\x008000\x00"),
        maps in text_like("7f1c-7f2c r-xp 00000000 fe:00 1311 /usr/lib/libcuda.so.580.159.04\n55-56 r--p 0 0 0 [heap]\n"),
        cgroup in text_like("0::/system.slice/docker-4f0c9a1b2c3d4f0c9a1b2c3d4f0c9a1b2c3d4f0c9a1b2c3d4f0c9a1b2c3d4f0c.scope\n1:name=systemd:/user.slice/user@1000.service/a.service\n"),
    ) {
        let _ = processes::Stat::parse(&stat);
        let _ = processes::parse_uid(&status);
        let _ = processes::parse_uptime(&status);
        let _ = processes::has_libcuda(&maps);
        let arguments = processes::parse_cmdline(&cmdline);
        prop_assert!(arguments.iter().map(String::len).sum::<usize>() <= 3 * cmdline.len());
        prop_assert!(processes::program(&arguments).len() <= cmdline.len() * 3 + 8);
        prop_assert!(processes::container(&cgroup).is_none_or(|name| name.len() < 40));
        prop_assert!(processes::unit(&cgroup).is_none_or(|unit| unit.ends_with(".service")));
    }

    #[test]
    fn output_of_an_ended_helper_is_parsed(
        text in text_like("trying = libnvidia-ml.so.1\nasking = nvmlInit_v2\nlibrary = l\ndriver = 580.1\nrefused = nvmlX: Not Supported\n\n[gpu]\nname = A\nmemory_total = 5\nprocess = 7 compute -\nasking = nvmlY (GPU 0)\ncomplete = true\n"),
        ended in 0u8..3,
    ) {
        let limit = std::time::Duration::from_secs(2);
        let nvml = Nvml::of_helper(match ended {
            0 => Ok(text.clone()),
            1 => Err(CommandError::Failed { text: text.clone() }),
            _ => Err(CommandError::TimedOut { limit, text: text.clone() }),
        });
        // A truncated answer is marked; silence does not mean absence.
        let complete = text.lines().any(|line| line == "complete = true");
        if !complete {
            prop_assert!(nvml != Nvml::Absent);
            if let Nvml::Answered(snapshot) = &nvml {
                prop_assert!(snapshot.unanswered.is_some());
            }
        }
    }

    #[test]
    fn parsers_of_small_files_never_panic(text in text_like("PRETTY_NAME=\"Ubuntu\"\nGNU C Library (x) stable release version 2.39.\n{\"cuda\":{\"version\":\"12.8.1\"}}\nCUDA Version 10.2\n#define CUDA_VERSION 12080\nrelease 13.0,\n# R36 (release), REVISION: 4.3,\nChipset Model: Apple M4\nVendor: Apple\nhw.memsize: 1\nP:musl\nV:1-r0\n[ 1.2] NVRM: Xid (PCI:0000:43:00): 13, pid=7, name=a, Graphics\n")) {
        let xids = kernel_log::parse(&text);
        prop_assert!(xids.iter().map(|xid| xid.count as usize).sum::<usize>() <= text.lines().count());
        let _ = os::os_release_value(&text, "PRETTY_NAME");
        let _ = os::parse_uname(&text);
        let _ = os::sw_vers_value(&text, "ProductVersion");
        let _ = libc::parse_glibc_banner(text.as_bytes());
        let _ = libc::parse_apk_version(&text, "musl");
        let _ = toolkits::parse_version_json(&text);
        let _ = toolkits::parse_version_txt(&text);
        let _ = toolkits::parse_cuda_h(&text);
        let _ = toolkits::parse_nvcc(&text);
        let _ = tegra::parse_release(&text);
        let _ = tegra::chip_of(&text);
        let _ = apple_gpu::parse_displays(&text);
        let _ = text::sysctl::Sysctl::parse(&text);
        let _ = text::count_cpu_list(&text);
        let _ = text::parse_size(&text);
        let _ = text::major_minor(&text);
    }
}
