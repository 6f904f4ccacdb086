// Command cluster runs a Kubernetes cluster in namespaces of this machine: etcd and the control plane of Kubernetes,
// and nodes with a real kubelet, containerd and runc, whose pods are containers. The network plugin is ptp of the CNI
// project, with routes between the nodes.
//
//	cluster up              starts a cluster in the background, with Sluice and CoreDNS
//	cluster exec NODE -- …  runs a command on a node
//	cluster down            ends it
//
// Everything runs below one process in namespaces of its own. Processes, network, mounts and files (in memory) end
// with it, even if it is killed. A guard process then removes the folder with the kubeconfig, and the cgroups. A port
// on 127.0.0.1 of the machine leads to the API server.
//
//	machine        run ── guard (removes folder and cgroups when run has ended)
//	               │
//	 control plane └ inside: 192.168.0.1, etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//	                 ├ node node-a: 192.168.0.2, containerd, kubelet, pods
//	                 └ node node-b: 192.168.0.3, containerd, kubelet, pods
package main
