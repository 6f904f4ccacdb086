//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	backends = 3
	clients  = 4
	workers  = 40                     // of each client
	patience = 250 * time.Millisecond // of a client, so that no SYN is sent again
	limit    = 30 * time.Second
	frontend = "172.30.0.80:80"
)

func backendAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 180, 0, byte(20 + i)}) }

// measure runs Sluice in a mode, and connections through it.
func measure(t lab.T, mode string, k kase, o options) (*result, error) {
	l := lab.New(t, lab.Options{Cgroups: mode == "ebpf"})
	b := &bench{rate: o.rate, kase: k}
	for i := range clients {
		b.clients = append(b.clients, l.Pod(l.NodeA, netip.AddrFrom4([4]byte{10, 180, 0, byte(9 + i)}).String()))
	}
	for i := range backends {
		pod := l.Pod(l.NodeB, backendAddr(i).String())
		pod.Serve(lab.TCP, 80)
		b.pods = append(b.pods, pod)
	}
	dir, err := os.MkdirTemp("/run", "ejection-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	manifest := filepath.Join(dir, "web.json")
	if err := os.WriteFile(manifest, k.manifest(), 0o600); err != nil {
		return nil, err
	}
	program := o.sluice
	if program == "" {
		if program, err = harness.ProgramIn(dir); err != nil {
			return nil, err
		}
	}
	args := []string{
		"--manifests=" + manifest, "--hostname-override=node-a", "--cluster-cidr=10.180.0.0/16", "--proxy-mode=" + mode,
	}
	if mode == "ebpf" {
		args = append(args, "--bpf-dir="+filepath.Join(lab.BPFFS(t), "sluice"), "--cgroup-root="+l.NodeA.Cgroup())
	}
	if err := lab.HintIptables(l.NodeA, "nft"); err != nil {
		return nil, err
	}
	p, err := harness.Start(l.NodeA, exec.Command(program, args...))
	if err != nil {
		return nil, err
	}
	served := func() error {
		r := b.clients[0].Dial(lab.TCP, netip.MustParseAddrPort(frontend))
		if r.Outcome != lab.Answered {
			return errors.New(r.String())
		}
		return nil
	}
	if err := p.Until(limit, "the Service", served); err != nil {
		return nil, err
	}
	before, err := p.CPU() // without the start
	if err != nil {
		return nil, err
	}
	err = b.run()
	after, failed := p.CPU()
	_, stopped := p.Stop(syscall.SIGTERM, limit)
	if err := errors.Join(err, failed, stopped); err != nil {
		return nil, err
	}
	b.result.cpu = after - before
	b.result.ejections = p.Log.Count("Ejected an endpoint")
	return &b.result, nil
}

// manifest returns a Service with all backends.
func (k kase) manifest() []byte {
	ports := []harness.Object{{"port": 80}}
	svc := harness.Service("web", harness.Object{"clusterIP": "172.30.0.80", "ports": ports})
	if k.on != "" {
		svc["metadata"].(harness.Object)["annotations"] = harness.Object{"sluice-proxy.github.io/ejection": k.on}
	}
	var addresses []string
	for i := range backends {
		addresses = append(addresses, backendAddr(i).String())
	}
	return harness.Manifest([]harness.Object{svc, harness.EndpointSlice("web", "IPv4", ports, addresses...)})
}

// bench opens connections at a rate.
type bench struct {
	kase          kase
	rate          int
	clients, pods []*lab.Host
	began         time.Time

	mu     sync.Mutex
	result result
}

// run connects for the time of the case, and changes links.
func (b *bench) run() error {
	b.result.seconds = make([]counts, b.kase.seconds)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	due := make(chan struct{}, workers)
	var group sync.WaitGroup
	errs := make(chan error, clients*workers)
	for range workers {
		for _, c := range b.clients {
			group.Go(func() { errs <- netns.Do(c.NetNSFD(), func() error { b.connect(due); return nil }) })
		}
	}
	b.began = time.Now()
	group.Go(func() {
		defer close(due)
		next := time.NewTicker(time.Second / time.Duration(b.rate))
		defer next.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-next.C:
				due <- struct{}{}
			}
		}
	})
	err := b.change()
	stop()
	group.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

// change changes links at the beginning of each second.
func (b *bench) change() error {
	for second := range b.kase.seconds {
		time.Sleep(time.Until(b.began.Add(time.Duration(second) * time.Second)))
		command := b.kase.set(second)
		if command == "" {
			continue
		}
		for _, i := range b.kase.links {
			if out, err := b.pods[i].Run(command, "nft", "-f", "-"); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
		}
	}
	time.Sleep(time.Until(b.began.Add(time.Duration(b.kase.seconds) * time.Second)))
	return nil
}

// connect opens and closes a connection for each item.
func (b *bench) connect(due <-chan struct{}) {
	for range due {
		second := int(time.Since(b.began) / time.Second)
		conn, err := net.DialTimeout("tcp", frontend, patience)
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0) // no ports wait
			_ = conn.Close()
		}
		if second >= len(b.result.seconds) {
			continue
		}
		b.mu.Lock()
		c := &b.result.seconds[second]
		if c.all++; err != nil {
			c.failed++
		}
		b.mu.Unlock()
	}
}
