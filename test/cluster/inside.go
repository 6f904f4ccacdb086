//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// root is a file system in memory with all files of a cluster.
const root = "/mnt"

// relayFile is the listening socket on the machine, and logFiles the first of the logs: of the control plane, then
// one of each node.
const (
	relayFile = orders + 1
	logFiles  = orders + 2
)

// inside is the control plane, the first process of a cluster's namespaces. It writes "ready" when the nodes are.
func inside() error {
	in := receive()
	var s spec
	if err := in.next(&s); err != nil {
		return err
	}
	go in.exitAtEnd() // even while it starts. The nodes end with it, as their PID namespaces are in its own
	c := &control{spec: s, processes: newReaper(), log: os.NewFile(logFiles, "log")}
	unix.CloseOnExec(logFiles)
	if err := errors.Join(c.files(), c.network()); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	go c.relay(os.NewFile(relayFile, "relay"))
	if err := c.startNodes(); err != nil {
		return err
	}
	fmt.Println("ready")
	<-make(chan struct{}) // until exitAtEnd
	runtime.KeepAlive(c)  // the nodes end when their orders, which are files, are closed
	return nil
}

type control struct {
	spec
	processes *reaper
	log       *os.File
	client    kubernetes.Interface
	nodes     []*child
}

// files makes the file system of a cluster.
func (c *control) files() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := errors.Join(unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"),
		unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	files := map[string][]byte{
		"ca.crt": c.Authority, "api.crt": c.Certificate, "api.key": c.Key,
		"accounts.key": c.AccountKey, "tokens.csv": c.tokenFile(),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o600); err != nil {
			return err
		}
	}
	server := net.JoinHostPort(apiAddress().String(), strconv.Itoa(apiPort))
	for user := range c.Tokens {
		if err := clientcmd.WriteToFile(c.kubeconfig(user, server), kubeconfigOf(user)); err != nil {
			return err
		}
	}
	return c.bind()
}

func kubeconfigOf(user string) string { return filepath.Join(root, user+".kubeconfig") }

// bind makes programs and images visible in the file system of the cluster, as paths of the machine may be hidden on
// nodes.
func (c *control) bind() (err error) {
	for i, path := range c.Images {
		if c.Images[i], err = bindFile(path, filepath.Join(root, "images", filepath.Base(path))); err != nil {
			return err
		}
	}
	for name, path := range c.Programs {
		if c.Programs[name], err = bindFile(path, filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// bindFile makes a file visible at another path, which it returns.
func bindFile(from, at string) (string, error) {
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, nil, 0o600)); err != nil {
		return "", err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("mount %s at %s: %w", from, at, err)
	}
	return at, nil
}

// start starts etcd and the programs of the control plane.
func (c *control) start() error {
	etcd := []string{c.Programs["etcd"], "--data-dir=" + root + "/etcd", "--unsafe-no-fsync", "--log-level=warn"}
	if err := c.processes.daemon(c.log, etcd...); err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(root, name) }
	if err := c.processes.daemon(c.log, c.Programs["kube-apiserver"],
		"--etcd-servers=http://127.0.0.1:2379", "--secure-port="+strconv.Itoa(apiPort),
		"--advertise-address="+apiAddress().String(),
		"--tls-cert-file="+file("api.crt"), "--tls-private-key-file="+file("api.key"),
		"--token-auth-file="+file("tokens.csv"),
		"--service-account-issuer=https://"+apiName, "--service-account-key-file="+file("accounts.key"),
		"--service-account-signing-key-file="+file("accounts.key"), "--service-cluster-ip-range="+serviceRanges,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP", "--cert-dir="+file("certificates")); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	fmt.Println("the API server answers")
	if err := c.processes.daemon(c.log, c.Programs["kube-controller-manager"],
		"--kubeconfig="+kubeconfigOf(controller), "--use-service-account-credentials", "--leader-elect=false",
		"--service-account-private-key-file="+file("accounts.key"), "--root-ca-file="+file("ca.crt"),
		"--flex-volume-plugin-dir="+file("volume-plugins"), "--allocate-node-cidrs", "--cluster-cidr="+podRanges,
		"--service-cluster-ip-range="+serviceRanges,
		"--cert-dir="+file("certificates")); err != nil {
		return err
	}
	return c.processes.daemon(c.log, c.Programs["kube-scheduler"],
		"--kubeconfig="+kubeconfigOf(scheduler), "--leader-elect=false", "--cert-dir="+file("certificates"))
}

// connect waits for the API server.
func (c *control) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfigOf(admin))
	if err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	return poll(func(ctx context.Context) error {
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// patience is how long anything may take, on a slow machine with other work.
const patience = 5 * time.Minute

// poll calls try until it returns no error.
func poll(try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// startNodes starts the nodes, and connects their pods when the controller manager has given each its addresses.
func (c *control) startNodes() error {
	for i, name := range c.Nodes {
		node, err := c.startNode(i, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.nodes = append(c.nodes, node)
	}
	pods := map[string][]string{}
	if err := poll(func(ctx context.Context) error { return c.findPodAddresses(ctx, pods) }); err != nil {
		return err
	}
	return errors.Join(c.connectPods(pods), poll(c.nodesReady))
}

// nodeOrder is the first order to a node.
type nodeOrder struct {
	Name     string
	Number   int // of its addresses
	Programs map[string]string
	Images   []string
	Cgroups  []string
}

func (c *control) startNode(i int, name string) (*child, error) {
	log := os.NewFile(uintptr(logFiles+1+i), name)
	unix.CloseOnExec(logFiles + 1 + i)
	var node *child
	ended, err := c.processes.start(func() (int, error) {
		var err error
		if node, err = newChild(namespaces, log, argsOf(c.Dir, name)); err != nil {
			return 0, err
		}
		return node.cmd.Process.Pid, nil
	})
	if err != nil {
		return nil, err
	}
	go func() {
		<-ended
		fmt.Fprintf(os.Stderr, "%s has ended: the cluster ends\n", name)
		os.Exit(1)
	}()
	cgroups := below(c.Cgroups, name)
	if err := errors.Join(enter(cgroups, node.cmd.Process.Pid), plugIn(name, node.cmd.Process.Pid)); err != nil {
		return nil, err
	}
	return node, node.order(nodeOrder{Name: name, Number: i + 2, Programs: c.Programs, Images: c.Images, Cgroups: cgroups})
}

// findPodAddresses finds the addresses that the controller manager has given the pods of each node.
func (c *control) findPodAddresses(ctx context.Context, pods map[string][]string) error {
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range list.Items {
		if len(n.Spec.PodCIDRs) > 0 {
			pods[n.Name] = n.Spec.PodCIDRs
		}
	}
	if len(pods) < len(c.Nodes) {
		return fmt.Errorf("kubelet has registered only the nodes %v", slices.Sorted(maps.Keys(pods)))
	}
	return nil
}

// connectPods gives each node the addresses of its pods, and the routes to the pods of the others.
func (c *control) connectPods(pods map[string][]string) error {
	for i, name := range c.Nodes {
		order := podNetwork{Own: pods[name], Via: map[int][]string{}}
		for j, other := range c.Nodes {
			if j != i {
				order.Via[j+2] = pods[other]
			}
		}
		if err := c.nodes[i].order(order); err != nil {
			return err
		}
		if err := addRoutes(i+2, pods[name]); err != nil {
			return err
		}
		fmt.Println("kubelet has started on", name)
	}
	return nil
}

// nodesReady returns an error until each node is ready.
func (c *control) nodesReady(ctx context.Context) error {
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range list.Items {
		for _, condition := range n.Status.Conditions {
			if condition.Type == "Ready" && condition.Status != "True" {
				return fmt.Errorf("%s is not ready: %s", n.Name, condition.Message)
			}
		}
	}
	return nil
}

// relay connects a listening socket on the machine with the API server.
func (c *control) relay(file *os.File) {
	listener, err := net.FileListener(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		return
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", net.JoinHostPort(apiAddress().String(), strconv.Itoa(apiPort)))
		if err != nil {
			_ = client.Close()
			continue
		}
		go copyAll(client, server)
		go copyAll(server, client)
	}
}

// copyAll copies one direction of a connection, and closes both when it ends.
func copyAll(to, from net.Conn) {
	_, _ = io.Copy(to, from) // an error ends the connection as well
	_ = to.Close()
	_ = from.Close()
}
