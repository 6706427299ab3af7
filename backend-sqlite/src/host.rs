//! What the machine knows: its boot, its clocks, its file systems.

#[cfg(target_os = "linux")]
pub(crate) use linux::{boot, is_mounted, network_file_system, since_boot};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{boot, is_mounted, network_file_system, since_boot};

/// Microseconds since 1970, UTC.
pub(crate) fn time_of_day() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::path::Path;
    use std::{fs, io};

    use leasehold_api::{Runtime, TokioRuntime};
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};

    /// What `statfs` calls file systems of other machines, and those that a program of unknown care serves.
    const NETWORK: [(u32, &str); 6] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB 2"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "FUSE"),
    ];

    /// Names the clock that [`since_boot`] reads: the boot, and the offsets of the clocks in this container.
    pub(crate) fn boot() -> io::Result<String> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // Kernels before 5.6 have none.
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Ok(boot + &offsets)
    }

    /// Microseconds since the boot, suspend included.
    pub(crate) fn since_boot(runtime: &TokioRuntime) -> u64 {
        let since = runtime.now().since_origin();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    /// The name of the file system of an existing path, if SQLite's locks are not safe there.
    pub(crate) fn network_file_system(path: &Path) -> io::Result<Option<&'static str>> {
        // The numbers have 32 bits, in a field whose type depends on the architecture.
        Ok(name_of(statfs(path)?.f_type as u32))
    }

    /// Whether the file itself is mounted, as a single file is into a container. Kernels before 5.8 don't tell.
    pub(crate) fn is_mounted(file: &Path) -> bool {
        let found = statx(CWD, file, AtFlags::empty(), StatxFlags::empty());
        found.is_ok_and(|it| it.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    fn name_of(kind: u32) -> Option<&'static str> {
        let found = NETWORK.iter().find(|(number, _)| *number == kind);
        found.map(|(_, name)| *name)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn network_file_systems_are_told_from_local_ones() {
            assert_eq!(name_of(0x6969), Some("NFS"));
            assert_eq!(name_of(0x6573_5546), Some("FUSE"));
            let (ext4, tmpfs) = (0xef53, 0x0102_1994);
            assert_eq!((name_of(ext4), name_of(tmpfs)), (None, None));
            assert_eq!(
                network_file_system(Path::new("/proc")).expect("there"),
                None
            );
        }

        #[test]
        fn mounted_path_is_told_from_one_within() {
            assert!(is_mounted(Path::new("/proc")));
            assert!(!is_mounted(Path::new("/proc/self")));
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;
    use std::path::Path;

    use leasehold_api::TokioRuntime;

    pub(crate) fn boot() -> io::Result<String> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn since_boot(_: &TokioRuntime) -> u64 {
        0
    }

    pub(crate) fn network_file_system(_: &Path) -> io::Result<Option<&'static str>> {
        Ok(None)
    }

    pub(crate) fn is_mounted(_: &Path) -> bool {
        false
    }
}
