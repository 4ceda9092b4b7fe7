//! The messages of the CRI's `runtime.v1` that the client needs, with the field
//! numbers of kubernetes/cri-api `pkg/apis/runtime/v1/api.proto`. Written by hand,
//! because generating them would make protoc a prerequisite of the workspace.
//! Fields left out are skipped by the decoder.

use prost::Message;

/// `NamespaceMode.NODE`.
pub const NAMESPACE_NODE: i32 = 2;
/// `PodSandboxState.SANDBOX_READY`.
pub const SANDBOX_READY: i32 = 0;
/// `ContainerState.CONTAINER_RUNNING`.
pub const CONTAINER_RUNNING: i32 = 1;
/// `ContainerState.CONTAINER_EXITED`.
pub const CONTAINER_EXITED: i32 = 2;

/// The answer of calls that return nothing of interest.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// `VersionResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Version {
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
}

/// `PodSandboxMetadata`.
#[derive(Clone, PartialEq, Message)]
pub struct PodMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// `NamespaceOption`; 0 is the pod's own namespace.
#[derive(Clone, PartialEq, Message)]
pub struct Namespaces {
    #[prost(int32, tag = "1")]
    pub network: i32,
    #[prost(int32, tag = "2")]
    pub pid: i32,
    #[prost(int32, tag = "3")]
    pub ipc: i32,
}

/// `LinuxSandboxSecurityContext`.
#[derive(Clone, PartialEq, Message)]
pub struct PodSecurity {
    #[prost(message, optional, tag = "1")]
    pub namespaces: Option<Namespaces>,
}

/// `LinuxPodSandboxConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPod {
    #[prost(message, optional, tag = "2")]
    pub security: Option<PodSecurity>,
}

/// `PodSandboxConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct PodConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodMetadata>,
    #[prost(string, tag = "3")]
    pub log_directory: String,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPod>,
}

/// `RunPodSandboxRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct RunPod {
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodConfig>,
}

/// Any request or answer that is one id in field 1.
#[derive(Clone, PartialEq, Message)]
pub struct Id {
    #[prost(string, tag = "1")]
    pub id: String,
}

/// `PodSandbox`.
#[derive(Clone, PartialEq, Message)]
pub struct Pod {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodMetadata>,
    #[prost(int32, tag = "3")]
    pub state: i32,
}

/// `ListPodSandboxResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Pods {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Pod>,
}

/// `ImageSpec`.
#[derive(Clone, PartialEq, Message)]
pub struct ImageSpec {
    #[prost(string, tag = "1")]
    pub image: String,
}

/// `ContainerMetadata`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

/// `ContainerConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    #[prost(string, tag = "11")]
    pub log_path: String,
    #[prost(message, optional, tag = "15")]
    pub linux: Option<Empty>,
}

/// `CreateContainerRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CreateContainer {
    #[prost(string, tag = "1")]
    pub pod: String,
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub pod_config: Option<PodConfig>,
}

/// `StopContainerRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct StopContainer {
    #[prost(string, tag = "1")]
    pub id: String,
    /// Seconds before SIGKILL.
    #[prost(int64, tag = "2")]
    pub timeout: i64,
}

/// `Container`.
#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    pub image: Option<ImageSpec>,
    #[prost(int32, tag = "6")]
    pub state: i32,
}

/// `ListContainersResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Container>,
}

/// `ContainerStatus`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatus {
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    #[prost(string, tag = "10")]
    pub reason: String,
}

/// `ContainerStatusResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
}

/// `ExecSyncRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct ExecSync {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, repeated, tag = "2")]
    pub command: Vec<String>,
    /// Seconds.
    #[prost(int64, tag = "3")]
    pub timeout: i64,
}

/// `ExecSyncResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ExecSyncAnswer {
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub exit_code: i32,
}

/// `Image`.
#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, repeated, tag = "2")]
    pub tags: Vec<String>,
    #[prost(uint64, tag = "4")]
    pub size: u64,
}

/// `ListImagesResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Images {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Image>,
}

/// `PullImageRequest`, `RemoveImageRequest`, `ImageStatusRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct ImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
}

/// `ImageStatusResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ImageStatus {
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
}
