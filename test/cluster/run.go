//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
)

// run starts a cluster, and ends it with this process.
func run(o options) error {
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer cancel()
	programs, err := findPrograms()
	if err != nil {
		return err
	}
	lock, err := acquire(o.dir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // the guard has it too
	cgroup := fmt.Sprintf("%s%d", cgroupName, os.Getpid())
	cgroups, err := makeCgroups(cgroup)
	if err != nil {
		return err
	}
	g, err := newChild(0, os.Stderr, append([]string{stageGuard, o.dir}, cgroups...), lock)
	if err != nil {
		return errors.Join(err, removeCgroups(cgroups))
	}
	m := &machine{options: o, spec: spec{Dir: o.dir, Programs: programs, Nodes: nodeNames(), Cgroups: cgroups}}
	err = m.serve(ctx)
	return errors.Join(err, m.end(), g.orders.Close(), g.cmd.Wait())
}

// guard waits for the end of run, even if it is killed, and removes its leftovers. It holds the lock until then.
func guard(dir string, cgroups []string) error {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	var none any
	_ = receive().next(&none) // the error is the end
	return errors.Join(removeCgroups(cgroups), os.RemoveAll(dir))
}

// acquire makes the folder of a cluster, with the PID of this process in a file that is locked.
func acquire(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(lockIn(dir), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("a cluster runs already: export KUBECONFIG=%s, or end it by make cluster-down",
			kubeconfigIn(dir)), lock.Close())
	}
	if err := removeLeft(lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, errors.Join(lock.Truncate(0), write(lock, fmt.Sprintf("%d\n", os.Getpid())))
}

func write(f *os.File, text string) error {
	_, err := f.WriteString(text)
	return err
}

func lockIn(dir string) string       { return filepath.Join(dir, "pid") }
func kubeconfigIn(dir string) string { return filepath.Join(dir, "kubeconfig") }

// machine has the parts of a cluster on the machine.
type machine struct {
	options
	spec
	control *child
	port    string // of the API server on 127.0.0.1
}

// serve starts everything, and waits until the context ends.
func (m *machine) serve(ctx context.Context) (err error) {
	fmt.Println("cluster: writing images")
	if m.Images, err = writeImages(ctx, filepath.Join(m.dir, "images"), m.Programs); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	if err := m.identify(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	ready := make(chan struct{})
	if err := m.begin(ready, ended); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return errors.Join(errors.New("interrupted"), m.lastLines())
	case err := <-ended:
		return errors.Join(errors.New("the cluster has ended"), err, m.lastLines())
	case <-ready:
	}
	if err := m.announce(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return errors.Join(errors.New("the cluster has ended"), err, m.lastLines())
	}
}

// begin starts the process inside, closes ready when its nodes are ready, and sends its error when it has ended.
func (m *machine) begin(ready chan struct{}, ended chan error) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	relay, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	_, m.port, _ = net.SplitHostPort(listener.Addr().String())
	files := []*os.File{relay}
	for _, name := range append([]string{controlPlane}, m.Nodes...) {
		log, err := os.Create(filepath.Join(m.dir, name+".log"))
		if err != nil {
			return err
		}
		files = append(files, log)
	}
	read, output, err := os.Pipe()
	if err != nil {
		return err
	}
	m.control, err = newChild(namespaces, output, argsOf(m.dir, controlPlane), files...)
	for _, f := range append(files, output) {
		_ = f.Close() // the child has it
	}
	_ = listener.Close()
	if err != nil {
		return err
	}
	if err := enter(below(m.Cgroups, controlPlane), m.control.cmd.Process.Pid); err != nil {
		return err
	}
	for _, dir := range m.Cgroups {
		if err := delegate(dir); err != nil {
			return err
		}
	}
	go func() {
		m.follow(read, ready)
		ended <- m.control.cmd.Wait()
	}()
	return m.control.order(m.spec)
}

// follow prints the output of the process inside.
func (m *machine) follow(output io.Reader, ready chan struct{}) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if lines.Text() == "ready" {
			close(ready)
			continue
		}
		fmt.Println("cluster:", lines.Text())
	}
}

// end ends the processes inside.
func (m *machine) end() error {
	if m.control == nil {
		return nil
	}
	return m.control.orders.Close()
}

// lastLines returns the ends of the logs.
func (m *machine) lastLines() error {
	var out error
	for _, name := range append([]string{controlPlane}, m.Nodes...) {
		text, err := os.ReadFile(filepath.Join(m.dir, name+".log"))
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		out = errors.Join(out, fmt.Errorf("the last lines of %s:\n  %s", name,
			strings.Join(lines[max(0, len(lines)-10):], "\n  ")))
	}
	return out
}

// announce writes the kubeconfig, deploys CoreDNS and Sluice, and prints how to continue.
func (m *machine) announce(ctx context.Context) error {
	file := kubeconfigIn(m.dir)
	if err := clientcmd.WriteToFile(m.kubeconfig(admin, "127.0.0.1:"+m.port), file); err != nil {
		return err
	}
	bin := filepath.Dir(m.Programs["kubectl"])
	if m.bare {
		fmt.Printf("The cluster runs, without a service proxy.\n\n  export KUBECONFIG=%s PATH=$PATH:%s\n\n%s\n",
			file, bin, lastLine)
		return m.detach()
	}
	if err := (kubectl{m.Programs["kubectl"], file}).deploy(ctx); err != nil {
		return err
	}
	fmt.Printf(`
The cluster runs: Kubernetes 1.37, two nodes, Sluice in mode nftables, CoreDNS.

  export KUBECONFIG=%[1]s PATH=$PATH:%[2]s
  kubectl get pods -A -o wide
  kubectl -n kube-system exec daemonset/sluice -- sluice get services
  %[3]s exec node-a -- nft list table ip sluice

%[4]s
`, file, bin, os.Args[0], lastLine)
	return m.detach()
}

// lastLine is the last line that a cluster prints when it has started.
const lastLine = "make cluster-down ends it."

// detach lets up end.
func (m *machine) detach() error {
	none, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil || !m.background {
		return err
	}
	return errors.Join(unix.Dup3(int(none.Fd()), 1, 0), unix.Dup3(int(none.Fd()), 2, 0))
}
