//! A small CRI client for the lab's guests, where no crictl is packaged.
//!
//! It prints one line per object and exits 1 with the runtime's own words when a
//! call fails. Pods use the host's network, so that no CNI configuration is needed.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

mod messages;
use messages::*;

const RUNTIME: &str = "/runtime.v1.RuntimeService/";
const IMAGES: &str = "/runtime.v1.ImageService/";

#[derive(Parser)]
#[command(about = "A small CRI client")]
struct Cli {
    /// The runtime's socket.
    #[arg(short, long, default_value = "/run/k3s/containerd/containerd.sock")]
    runtime: String,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// The runtime's name and version.
    Version,
    /// One line per image.
    Images,
    /// One line per pod sandbox.
    Pods,
    /// One line per container.
    Ps,
    /// Pulls an image.
    Pull { image: String },
    /// Removes an image.
    Rmi { image: String },
    /// Exits 1 when the runtime does not know the image.
    Imgstatus { image: String },
    /// Runs a pod sandbox and prints its id.
    Runp { name: String },
    /// Stops a pod sandbox.
    Stopp { pod: String },
    /// Removes a pod sandbox.
    Rmp { pod: String },
    /// Stops a container at once.
    Stop { container: String },
    /// Removes a container.
    Rm { container: String },
    /// Runs a command in a running container; passes its output and exit code on.
    Exec {
        container: String,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Runs a pod with one container and leaves it running.
    Up {
        name: String,
        image: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Runs a pod with one container to its end, prints its output (from the log
    /// that the runtime wrote) and passes its exit code on.
    Run {
        name: String,
        image: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut cri = Cri::connect(cli.runtime).await?;
    match cli.verb {
        Verb::Version => {
            let version: Version = cri.call(RUNTIME, "Version", Empty {}).await?;
            println!("{} {}", version.runtime_name, version.runtime_version);
        }
        Verb::Images => {
            let images: Images = cri.call(IMAGES, "ListImages", Empty {}).await?;
            for image in images.items {
                println!("{} {} {}", image.id, image.tags.join(","), image.size);
            }
        }
        Verb::Pods => {
            let pods: Pods = cri.call(RUNTIME, "ListPodSandbox", Empty {}).await?;
            for pod in pods.items {
                let state = if pod.state == SANDBOX_READY {
                    "Ready"
                } else {
                    "NotReady"
                };
                println!(
                    "{} {} {state}",
                    pod.id,
                    pod.metadata.unwrap_or_default().name
                );
            }
        }
        Verb::Ps => {
            let containers: Containers = cri.call(RUNTIME, "ListContainers", Empty {}).await?;
            for container in containers.items {
                println!(
                    "{} {} {} {} {}",
                    container.id,
                    container.metadata.unwrap_or_default().name,
                    state_name(container.state),
                    container.image.unwrap_or_default().image,
                    container.pod,
                );
            }
        }
        Verb::Pull { image } => {
            let pulled: Id = cri.call(IMAGES, "PullImage", image_request(image)).await?;
            println!("{}", pulled.id);
        }
        Verb::Rmi { image } => {
            let _: Empty = cri
                .call(IMAGES, "RemoveImage", image_request(image))
                .await?;
        }
        Verb::Imgstatus { image } => {
            let request = image_request(image.clone());
            let status: ImageStatus = cri.call(IMAGES, "ImageStatus", request).await?;
            let Some(found) = status.image else {
                bail!("no image {image}")
            };
            println!("{} {} {}", found.id, found.tags.join(","), found.size);
        }
        Verb::Runp { name } => println!("{}", cri.run_pod(&name).await?),
        Verb::Stopp { pod } => cri.by_id("StopPodSandbox", pod).await?,
        Verb::Rmp { pod } => cri.by_id("RemovePodSandbox", pod).await?,
        Verb::Stop { container } => {
            let request = StopContainer {
                id: container,
                timeout: 0,
            };
            let _: Empty = cri.call(RUNTIME, "StopContainer", request).await?;
        }
        Verb::Rm { container } => cri.by_id("RemoveContainer", container).await?,
        Verb::Exec { container, command } => {
            let request = ExecSync {
                id: container,
                command,
                timeout: 60,
            };
            let done: ExecSyncAnswer = cri.call(RUNTIME, "ExecSync", request).await?;
            print!("{}", String::from_utf8_lossy(&done.stdout));
            eprint!("{}", String::from_utf8_lossy(&done.stderr));
            std::process::exit(done.exit_code);
        }
        Verb::Up {
            name,
            image,
            command,
        } => {
            let (pod, container) = cri.start(&name, image, command).await?;
            println!("{pod} {container}");
        }
        Verb::Run {
            name,
            image,
            command,
        } => {
            let (_, container) = cri.start(&name, image, command).await?;
            let ended = cri.wait_exited(&container).await?;
            print!("{}", container_output(&name)?);
            std::process::exit(ended.exit_code);
        }
    }
    Ok(())
}

struct Cri {
    grpc: tonic::client::Grpc<Channel>,
}

impl Cri {
    async fn connect(socket: String) -> Result<Self> {
        // The URI is only the HTTP authority; the connector decides where to go.
        let connector = tower::service_fn({
            let socket = socket.clone();
            move |_: Uri| {
                let socket = socket.clone();
                async move {
                    Ok::<_, std::io::Error>(TokioIo::new(
                        tokio::net::UnixStream::connect(socket).await?,
                    ))
                }
            }
        });
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connector)
            .await
            .with_context(|| format!("connect to {socket}"))?;
        Ok(Cri {
            grpc: tonic::client::Grpc::new(channel),
        })
    }

    async fn call<Q, A>(&mut self, service: &str, method: &str, request: Q) -> Result<A>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let uri: Uri = format!("{service}{method}").parse()?;
        let path = uri
            .into_parts()
            .path_and_query
            .context("a method without a path")?;
        self.grpc.ready().await.with_context(|| method.to_owned())?;
        match self
            .grpc
            .unary(
                tonic::Request::new(request),
                path,
                ProstCodec::<Q, A>::default(),
            )
            .await
        {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => bail!("{method}: {:?}: {}", status.code(), status.message()),
        }
    }

    async fn by_id(&mut self, method: &str, id: String) -> Result<()> {
        let _: Empty = self.call(RUNTIME, method, Id { id }).await?;
        Ok(())
    }

    async fn run_pod(&mut self, name: &str) -> Result<String> {
        let request = RunPod {
            config: Some(pod_config(name)),
        };
        let pod: Id = self.call(RUNTIME, "RunPodSandbox", request).await?;
        Ok(pod.id)
    }

    async fn start(
        &mut self,
        name: &str,
        image: String,
        command: Vec<String>,
    ) -> Result<(String, String)> {
        let pod = self.run_pod(name).await?;
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(ImageSpec { image }),
            command,
            log_path: format!("{name}.log"),
            linux: Some(Empty {}),
        };
        let request = CreateContainer {
            pod: pod.clone(),
            config: Some(config),
            pod_config: Some(pod_config(name)),
        };
        let container: Id = self.call(RUNTIME, "CreateContainer", request).await?;
        self.by_id("StartContainer", container.id.clone()).await?;
        Ok((pod, container.id))
    }

    async fn wait_exited(&mut self, container: &str) -> Result<ContainerStatus> {
        for _ in 0..600 {
            let request = Id {
                id: container.to_owned(),
            };
            let answer: ContainerStatusAnswer =
                self.call(RUNTIME, "ContainerStatus", request).await?;
            let status = answer
                .status
                .context("ContainerStatus: an answer without a status")?;
            if status.state == CONTAINER_EXITED {
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("container {container} is still running after 60 s")
    }
}

fn image_request(image: String) -> ImageRequest {
    ImageRequest {
        image: Some(ImageSpec { image }),
    }
}

fn log_directory(name: &str) -> String {
    format!("/var/log/pods/{name}")
}

fn pod_config(name: &str) -> PodConfig {
    let metadata = PodMetadata {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespace: "default".to_owned(),
        attempt: 0,
    };
    let namespaces = Namespaces {
        network: NAMESPACE_NODE,
        pid: 0,
        ipc: 0,
    };
    PodConfig {
        metadata: Some(metadata),
        log_directory: log_directory(name),
        linux: Some(LinuxPod {
            security: Some(PodSecurity {
                namespaces: Some(namespaces),
            }),
        }),
    }
}

/// The runtime logs `TIME STREAM TAG TEXT` per line (CRI log format).
fn container_output(name: &str) -> Result<String> {
    let path = format!("{}/{name}.log", log_directory(name));
    let log = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let mut text = String::new();
    for line in log.lines() {
        let mut words = line.splitn(4, ' ');
        let (tag, rest) = (words.nth(2), words.next());
        text.push_str(rest.with_context(|| format!("{path}: not a log line: {line}"))?);
        if tag == Some("F") {
            text.push('\n');
        }
    }
    Ok(text)
}

fn state_name(state: i32) -> &'static str {
    match state {
        CONTAINER_RUNNING => "Running",
        CONTAINER_EXITED => "Exited",
        0 => "Created",
        _ => "Unknown",
    }
}
