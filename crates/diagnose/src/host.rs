use crate::gpu::all_geforce;
use crate::remedy::quote;
use facts::Machine;
use knowledge::{Minor, dotted};

/// The container's name when the machine is seen from inside one.
pub(crate) fn container(machine: &Machine) -> Option<&str> {
    let container = machine.virtualisation.as_ref()?.container.as_ref()?;
    Some(container.value.as_str())
}

/// How to say that a command is not for this shell: a container gets its driver from the host, WSL from Windows.
pub(crate) fn where_the_driver_is(machine: &Machine) -> Option<String> {
    match container(machine)? {
        "wsl" => Some("# in Windows, not here: WSL uses the driver of Windows".into()),
        name => Some(format!("# on the host, not in this {name} container:")),
    }
}

/// Commands that bring the NVIDIA driver to a branch, ending in the check that it took.
pub(crate) fn update_driver(machine: &Machine, branch: u32) -> Vec<String> {
    let mut lines: Vec<String> = where_the_driver_is(machine).into_iter().collect();
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

/// Commands that make an nvcc of a CUDA release the one builds use: one that is here, else from NVIDIA's packages.
pub(crate) fn use_toolkit(machine: &Machine, cuda: Minor) -> Vec<String> {
    let here = machine.toolkits.iter().filter(|toolkit| toolkit.has_nvcc).find(|toolkit| {
        let version = toolkit.version.as_ref().and_then(|v| knowledge::minor_of(&v.value));
        version.is_some_and(|version| version.0 == cuda.0)
    });
    if let Some(toolkit) = here {
        return vec![format!("export CUDA_HOME={}", quote(&toolkit.root))];
    }
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

/// The command that installs a system package, by its names on Debian's and on Red Hat's side.
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

/// What one nvcc thread takes while it compiles attention kernels (flash-attention's README and its issue 1736).
const BYTES_A_COMPILER: u64 = 5_000_000_000;

/// How many compilers fit into memory at once, by the container's limit where there is one; at least one.
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
    fn a_driver_is_updated_where_it_lives() {
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
    fn a_toolkit_that_is_here_comes_before_one_to_install() {
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
