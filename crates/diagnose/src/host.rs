use crate::gpu::all_geforce;
use crate::remedy::quote;
use facts::Machine;
use knowledge::{Minor, dotted};

/// The container's name, if the machine is seen from inside one.
pub(crate) fn container(machine: &Machine) -> Option<&str> {
    let container = machine.virtualisation.as_ref()?.container.as_ref()?;
    Some(container.value.as_str())
}

/// A remark that the next command is for the host or Windows, if this is a container or WSL.
pub(crate) fn driver_location_remark(machine: &Machine) -> Option<String> {
    match container(machine)? {
        "wsl" => Some("# in Windows, not here: WSL uses the driver of Windows".into()),
        name => Some(format!("# on the host, not in this {name} container:")),
    }
}

/// Steps that update the NVIDIA driver to a branch, ending in a reboot of the machine or of WSL.
pub(crate) fn update_driver(machine: &Machine, branch: u32) -> Vec<String> {
    let mut lines: Vec<String> = driver_location_remark(machine).into_iter().collect();
    if container(machine) == Some("wsl") {
        lines.push(format!("# install the NVIDIA driver for Windows, {branch} or newer, then:"));
        lines.push("wsl.exe --shutdown".into());
        return lines;
    }
    let ubuntu = machine.os.id.as_ref().is_some_and(|id| id.value == "ubuntu");
    lines.push(match (ubuntu, all_geforce(machine)) {
        (true, true) => format!("sudo ubuntu-drivers install nvidia:{branch}"),
        (true, false) => format!("sudo ubuntu-drivers install --gpgpu nvidia:{branch}-server"),
        (false, _) => {
            format!("# install NVIDIA driver {branch} or newer with the system's packages, then:")
        }
    });
    lines.push("sudo reboot".into());
    lines
}

/// Steps that select the nvcc of a CUDA release for builds: an installed toolkit of the same major version, else one
/// from NVIDIA's packages.
pub(crate) fn use_toolkit(machine: &Machine, cuda: Minor) -> Vec<String> {
    let here = machine.toolkits.iter().filter(|toolkit| toolkit.has_nvcc).find(|toolkit| {
        let version = toolkit.version.as_ref().and_then(|v| knowledge::minor_of(&v.value));
        version.is_some_and(|version| version.0 == cuda.0)
    });
    if let Some(toolkit) = here {
        return vec![format!("export CUDA_HOME={}", quote(&toolkit.root))];
    }
    install_toolkit(machine, cuda)
}

/// Steps that install a CUDA toolkit from NVIDIA's packages and select its nvcc for builds.
pub(crate) fn install_toolkit(machine: &Machine, cuda: Minor) -> Vec<String> {
    let package = format!("cuda-toolkit-{}-{}", cuda.0, cuda.1);
    let id = machine.os.id.as_ref().map_or("", |id| id.value.as_str());
    let install = match id {
        "ubuntu" | "debian" => format!("sudo apt-get install --yes {package}"),
        "rhel" | "rocky" | "almalinux" | "centos" | "fedora" | "amzn" => {
            format!("sudo dnf install --assumeyes {package}")
        }
        "sles" | "opensuse-leap" => format!("sudo zypper install --no-confirm {package}"),
        _ => format!("# install {package} from NVIDIA's repository for this system"),
    };
    vec![
        "# from NVIDIA's package repository:".into(),
        install,
        format!("export CUDA_HOME=/usr/local/cuda-{}", dotted(cuda)),
    ]
}

/// The command that installs a system package, by its names on Debian and on Red Hat.
pub(crate) fn install_package(machine: &Machine, debian: &str, red_hat: &str) -> String {
    let id = machine.os.id.as_ref().map_or("", |id| id.value.as_str());
    match id {
        "rhel" | "rocky" | "almalinux" | "centos" | "fedora" | "amzn" => {
            format!("sudo dnf install --assumeyes {red_hat}")
        }
        "ubuntu" | "debian" => format!("sudo apt-get install --yes {debian}"),
        _ => format!("# install {debian} (its name on Debian) with the system's packages"),
    }
}

/// The container runtime that a text names.
pub(crate) fn runtime_in(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let has = |word: &str| text.contains(word);
    if has("nodes are available") || has("failedscheduling") {
        Some("kubernetes")
    } else if has("podman") || has("cdi devices") || has("stat nvidia.com/gpu") {
        Some("podman")
    } else if has("apptainer") || has("singularity") || has("nv files") {
        Some("apptainer")
    } else {
        has("docker").then_some("docker")
    }
}

/// Steps that pass GPUs into a container: of the runtime that a text names, else of the one detected here, else of
/// Docker.
pub(crate) fn pass_gpus(machine: &Machine, named: Option<&str>) -> Vec<String> {
    let lines: &[&str] = match named.or(container(machine)).unwrap_or("docker") {
        "podman" => &[
            "# on the host, with NVIDIA's container toolkit installed:",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            "podman run --device nvidia.com/gpu=all ...",
        ],
        "kubernetes" => &[
            "# in the pod: resources: {limits: {nvidia.com/gpu: 1}}; GPUs that the nodes offer:",
            "kubectl describe nodes | grep --ignore-case nvidia.com/gpu",
            "# where that is 0 or missing, NVIDIA's device plugin does not run there:",
            "kubectl get pods --all-namespaces | grep --ignore-case nvidia",
        ],
        "apptainer" => &[
            "# with the driver on the host; --nv comes before the image's name:",
            "apptainer exec --nv IMAGE nvidia-smi",
        ],
        "lxc" => &[
            "# on the host, for LXD and Incus:",
            "lxc config device add CONTAINER gpu gpu",
            "lxc config set CONTAINER nvidia.runtime true",
        ],
        _ => &[
            "# on the host, with NVIDIA's container toolkit installed, once:",
            "sudo nvidia-ctk runtime configure --runtime=docker",
            "sudo systemctl restart docker",
            "# then start the container again with its GPUs:",
            "docker run --gpus all ...",
        ],
    };
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// Steps that keep a container's GPUs when systemd rewrites its device rules.
pub(crate) fn keep_gpus(machine: &Machine) -> Vec<String> {
    let lines: &[&str] = match container(machine) {
        Some("podman") => &[
            "podman restart CONTAINER",
            "# pass the GPUs in by CDI, which systemd knows of:",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            "podman run --device nvidia.com/gpu=all ...",
        ],
        Some("kubernetes") => &[
            "kubectl delete pod POD  # its controller starts another",
            "# to keep it from coming back, run NVIDIA's device plugin with:",
            "# PASS_DEVICE_SPECS=true",
        ],
        _ => &[
            "docker restart CONTAINER",
            "# to keep it from coming back, name the device files as well:",
            "docker run --gpus all --device /dev/nvidiactl --device /dev/nvidia-uvm --device /dev/nvidia0 ...",
            "# or let Docker manage control groups: \"exec-opts\": [\"native.cgroupdriver=cgroupfs\"] in",
            "# /etc/docker/daemon.json, then:",
            "sudo systemctl restart docker",
        ],
    };
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// Steps that give WSL access to the GPU of Windows.
pub(crate) fn repair_wsl() -> Vec<String> {
    [
        "# in Windows: install the current NVIDIA driver (GPUs with TCC: nvidia-smi -dm 0), then:",
        "wsl.exe --update",
        "wsl.exe --shutdown",
        "# in WSL: the Linux driver has to go, what Windows mounts stays:",
        "sudo apt-get purge '^libnvidia-compute-.*' '^nvidia-utils-.*' '^nvidia-driver-.*'",
        "ls -l /usr/lib/wsl/lib/libcuda.so.1 /dev/dxg",
        "/usr/lib/wsl/lib/nvidia-smi",
    ]
    .map(String::from)
    .into()
}

/// Steps that let a user open the GPU's device files, by their group if it is known.
pub(crate) fn open_devices(machine: &Machine, group: Option<&str>) -> Vec<String> {
    let group = group.unwrap_or("video");
    let lines: &[&str] = match container(machine) {
        Some("podman") => &[
            "podman run --device nvidia.com/gpu=all --group-add keep-groups --security-opt label=disable ...",
            "# or, for all containers of an SELinux host:",
            "sudo setsebool -P container_use_devices 1",
        ],
        Some("wsl") => return repair_wsl(),
        Some(_) => &[
            "# on the host: SELinux may refuse what the file modes allow",
            "sudo setsebool -P container_use_devices 1",
            "docker run --gpus all --security-opt label=disable ...",
        ],
        None => {
            return vec![
                "ls -l /dev/nvidia*".into(),
                format!("sudo usermod --append --groups {group} \"$USER\""),
                "# log in again for it to count".into(),
            ];
        }
    };
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// Steps that make the kernel trust the NVIDIA module.
pub(crate) fn sign_module(machine: &Machine) -> Vec<String> {
    let mut lines: Vec<String> = driver_location_remark(machine).into_iter().collect();
    let id = machine.os.id.as_ref().map_or("", |id| id.value.as_str());
    lines.push("mokutil --sb-state".into());
    lines.push(match id {
        "ubuntu" => "sudo update-secureboot-policy --enroll-key".into(),
        "debian" => "sudo mokutil --import /var/lib/dkms/mok.pub".into(),
        "fedora" | "rhel" | "rocky" | "almalinux" => {
            "sudo mokutil --import /etc/pki/akmods/certs/public_key.der".into()
        }
        _ => "sudo mokutil --import KEY.der  # the key that signs the module".into(),
    });
    lines.push(
        "# choose a password, reboot, and enrol the key on the blue screen of the firmware:".into(),
    );
    lines.push("sudo reboot".into());
    lines
}

/// Steps that blacklist nouveau, so that NVIDIA's driver gets the GPU.
pub(crate) fn blacklist_nouveau(machine: &Machine) -> Vec<String> {
    let mut lines: Vec<String> = driver_location_remark(machine).into_iter().collect();
    let file = "/etc/modprobe.d/blacklist-nouveau.conf";
    lines.push(format!(
        "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee {file}"
    ));
    let id = machine.os.id.as_ref().map_or("", |id| id.value.as_str());
    lines.push(match id {
        "rhel" | "rocky" | "almalinux" | "centos" | "fedora" | "amzn" | "sles" => {
            "sudo dracut --force".into()
        }
        _ => "sudo update-initramfs -u".into(),
    });
    lines.push("sudo reboot".into());
    lines
}

/// Steps that enlarge /dev/shm.
pub(crate) fn enlarge_shared_memory(machine: &Machine) -> Vec<String> {
    let lines: &[&str] = match container(machine) {
        Some("podman") => &["podman run --shm-size=16g ...", "# or the host's own: --ipc=host"],
        Some("kubernetes") => &[
            "# in the pod: volumes: [{name: dshm, emptyDir: {medium: Memory}}]",
            "# in its container: volumeMounts: [{name: dshm, mountPath: /dev/shm}]",
            "kubectl apply -f POD.yaml",
        ],
        Some("docker" | "lxc") => {
            &["docker run --shm-size=16g ...", "# or the host's own: --ipc=host"]
        }
        _ => &[
            "df -h /dev/shm; ls -l /dev/shm | head",
            "# in a container: docker run --shm-size=16g ..., or --ipc=host; else:",
            "sudo mount -o remount,size=16G /dev/shm",
        ],
    };
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// Memory of one nvcc thread that compiles attention kernels (flash-attention's README and its issue 1736).
const BYTES_A_COMPILER: u64 = 5_000_000_000;

/// The number of compilers that fit into memory at once, at least one and at most the cores; a container's limits come
/// first. `None` if the memory is unknown.
pub(crate) fn build_jobs(machine: &Machine) -> Option<u32> {
    let memory = machine.memory.limit_bytes.as_ref().or(machine.memory.total_bytes.as_ref())?;
    let fit = u32::try_from(memory.value / BYTES_A_COMPILER).unwrap_or(u32::MAX).max(1);
    let cores = machine.cpu.usable_cores.as_ref().or(machine.cpu.logical_cores.as_ref());
    Some(cores.map_or(fit, |cores| fit.min(cores.value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::machines;

    #[test]
    fn driver_updates_name_the_host_of_a_container() {
        let check = |machine: Machine, expect: &[&str]| {
            assert_eq!(update_driver(&machine, 580), expect);
        };
        check(machines::rtx4090(), &["sudo ubuntu-drivers install nvidia:580", "sudo reboot"]);
        check(
            machines::a10(),
            &["sudo ubuntu-drivers install --gpgpu nvidia:580-server", "sudo reboot"],
        );
        check(
            machines::in_container(machines::a10()),
            &[
                "# on the host, not in this docker container:",
                "sudo ubuntu-drivers install --gpgpu nvidia:580-server",
                "sudo reboot",
            ],
        );
        let mut other = machines::a10();
        other.os.id = None;
        check(
            other,
            &[
                "# install NVIDIA driver 580 or newer with the system's packages, then:",
                "sudo reboot",
            ],
        );
        let mut wsl = machines::in_container(machines::rtx4090());
        if let Some(place) = wsl.virtualisation.as_mut().and_then(|v| v.container.as_mut()) {
            place.value = "wsl".into();
        }
        assert_eq!(update_driver(&wsl, 580).last().map(String::as_str), Some("wsl.exe --shutdown"));
    }

    #[test]
    fn prefers_an_installed_toolkit() {
        let both = machines::with_toolkit(machines::h200(), "12.8", "/usr/local");
        assert_eq!(use_toolkit(&both, (12, 6)), ["export CUDA_HOME=/usr/local/cuda-12.8"]);
        let lines = use_toolkit(&machines::a10(), (13, 0));
        assert_eq!(
            lines[1..],
            [
                "sudo apt-get install --yes cuda-toolkit-13-0",
                "export CUDA_HOME=/usr/local/cuda-13.0"
            ]
        );
    }
}
