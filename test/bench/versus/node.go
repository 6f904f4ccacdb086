//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// node is a new node with a client, the pods of the probed Services, and the proxy under test.
type node struct {
	*server
	options
	kind    kind
	program string
	dir     string // for the files of the proxy
	host    *lab.Host
	client  *lab.Host
	pods    [2]*lab.Host
	podOf   map[int]int // index of the pod of each probed Service

	proxy  *harness.Process
	memory *harness.MemoryWatch
}

func newNode(t lab.T, s *server, o options, k kind) (n *node, err error) {
	l := lab.New(t, lab.Options{Timeout: 20 * time.Millisecond})
	n = &node{server: s, options: o, kind: k, program: o.kubeProxy, host: l.NodeA, podOf: map[int]int{}}
	n.client = l.Pod(l.NodeA, clientAddr)
	for i, a := range podAddrs() {
		n.pods[i] = l.Pod(l.NodeA, a.String())
		n.pods[i].Serve(lab.TCP, filled.PodPort)
	}
	s.Forward(t, l.NodeA)
	if n.dir, err = os.MkdirTemp("/run", "versus-"); err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(n.dir) })
	if isSluice(k.name) {
		if n.program = o.sluice; o.sluice == "" {
			n.program, err = harness.Program()
		}
		if err != nil {
			return nil, err
		}
	}
	for _, i := range n.probed { // after the last proxy they may be on the other pod
		if err := n.set(context.Background(), i, 0, n.pods[0].Addr4()); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// part is one of partNames. It adds its measurements to the result.
type part struct {
	name string
	run  func(*result) error
}

func (n *node) parts() []part {
	return []part{
		{"idle", n.idle},
		{"change", n.change},
		{"connect", n.connect},
		{"churn", n.churn},
		{"rolling", n.rolling},
		{"heap", n.heap},
	}
}

// measure runs the chosen parts and saves the result after each.
func (n *node) measure(r *result) error {
	started := r
	if !slices.Contains(n.options.parts, "start") { // the proxy must start in any case
		started = &result{Values: map[string]float64{}}
	}
	if slices.Contains(n.options.parts, "bare") {
		if err := n.step(part{"bare", n.bare}, r); err != nil {
			return err
		}
	}
	progress("%s, %d Services: start", n.kind.name, n.Services)
	if err := errors.Join(n.start(started), save(n.results, r)); err != nil {
		return err
	}
	for _, p := range n.parts() {
		if !slices.Contains(n.options.parts, p.name) {
			continue
		}
		if err := errors.Join(n.step(p, r), n.peak("peak", r), save(n.results, r)); err != nil {
			return err
		}
	}
	if err := n.halt(); err != nil || !slices.Contains(n.options.parts, "restart") {
		return err
	}
	return errors.Join(n.step(part{"restart", n.restart}, r), save(n.results, r))
}

func (n *node) step(p part, r *result) error {
	progress("%s, %d Services: %s", n.kind.name, n.Services, p.name)
	if err := p.run(r); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// peak records the peak memory so far.
func (n *node) peak(key string, r *result) error {
	m, err := n.memory.Peak()
	if err != nil {
		return err
	}
	r.Values[key], r.Values[key+".process"] = float64(m.Process+m.Child), float64(m.Process)
	return nil
}

// launch starts the proxy.
func (n *node) launch() error {
	kubeconfig, err := n.Kubeconfig("")
	if err != nil {
		return err
	}
	config := filepath.Join(n.dir, "config.yaml")
	if err := os.WriteFile(config, []byte(n.kind.config(kubeconfig)+n.gates()), 0o600); err != nil {
		return err
	}
	if v := n.kind.variant; v != "" {
		if err := lab.HintIptables(n.host, v); err != nil {
			return err
		}
	}
	if n.proxy, err = harness.Start(n.host, exec.Command(n.program, "--config="+config)); err != nil {
		return err
	}
	n.memory = n.proxy.WatchMemory()
	return nil
}

// gates returns the feature gates that the mode needs: from v1.37 on the gate of mode ipvs, which earlier programs do
// not know.
func (n *node) gates() string {
	const gate = "KubeProxyIPVS"
	help, _ := exec.Command(n.program, "--help").Output()
	if n.kind.mode != "ipvs" || !strings.Contains(string(help), gate) {
		return ""
	}
	return "featureGates: {" + gate + ": true}\n"
}

// halt stops the proxy; its rules stay. kube-proxy ends with a signal error, Sluice with 0.
func (n *node) halt() error {
	n.memory.Stop()
	_, err := n.proxy.Stop(syscall.SIGTERM, 30*time.Second)
	return err
}

// versions returns the versions of the proxy and of the tool it uses.
func (n *node) versions() string {
	version, err := exec.Command(n.program, "--version").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	text := string(version)
	if !isSluice(n.kind.name) {
		tool := map[string]string{"nftables": "nft", "iptables": "iptables", "ipvs": "ipset"}[n.kind.mode]
		more, _ := n.host.Run("", tool, "--version") // kube-proxy reports a missing tool
		text += more
	}
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), ", ")
}

// metrics reads the metrics of the proxy.
func (n *node) metrics() (metrics, error) {
	text, err := n.proxy.Get("http://" + metricsAddress + "/metrics")
	if err != nil {
		return nil, err
	}
	return parseMetrics(text)
}

// observed runs f and returns the observations that the proxy adds to a histogram meanwhile.
func (n *node) observed(name string, f func() error) ([]bucket, error) {
	before, err := n.metrics()
	if err != nil {
		return nil, err
	}
	if err := f(); err != nil {
		return nil, err
	}
	after, err := n.metrics()
	return since(before.histogram(name), after.histogram(name)), err
}

// toKernel runs f and records the share of Sluice in a change meanwhile: from the event in
// the process until the kernel has it.
func (n *node) toKernel(key string, r *result, f func() error) error {
	times, err := n.observed("sluice_event_to_kernel_duration_seconds", f)
	r.duration(key+".p50", quantile(times, 0.5))
	r.duration(key+".p99", quantile(times, 0.99))
	return err
}

// verbosity sets how much the proxy logs from now on.
func (n *node) verbosity(level string) error {
	request, err := http.NewRequest(http.MethodPut, "http://"+metricsAddress+"/debug/flags/v", strings.NewReader(level))
	if err != nil {
		return err
	}
	response, err := harness.Client(n.host, 30*time.Second).Do(request)
	if err != nil {
		return fmt.Errorf("set the verbosity: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("set the verbosity: %s", response.Status)
	}
	return nil
}

// connectOnce connects to a Service and returns the backend that answers.
func (n *node) connectOnce(i int) (netip.Addr, error) {
	r := n.client.Dial(lab.TCP, filled.Target(i))
	if r.Outcome != lab.Answered {
		return netip.Addr{}, fmt.Errorf("service %d: %s", i, r)
	}
	return r.Backend.Addr(), nil
}

// move puts a probed Service on its other pod, which it returns.
func (n *node) move(i int) (netip.Addr, error) {
	n.podOf[i] = 1 - n.podOf[i]
	pod := n.pods[n.podOf[i]].Addr4()
	return pod, n.set(context.Background(), i, 0, pod)
}

// spent runs f and returns the CPU time that the proxy used meanwhile.
func (n *node) spent(f func() error) (time.Duration, error) {
	before, err := n.proxy.CPU()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := n.proxy.CPU()
	return after - before, err
}
