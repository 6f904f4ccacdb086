package app

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// manyServices returns manifests of Services of type ClusterIP, with one endpoint each.
func manyServices(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `
---
apiVersion: v1
kind: Service
metadata: {name: s%[1]d, namespace: many}
spec: {clusterIP: 10.96.%[2]d.%[3]d, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%[1]d-1, namespace: many, labels: {kubernetes.io/service-name: s%[1]d}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.%[2]d.%[3]d]}]
`, i, 1+i/200, 1+i%200)
	}
	return b.String()
}

// editor is another program that changes tables repeatedly.
type editor struct {
	stop func()
	runs atomic.Int64 // number of changes
}

// Write counts the lines that the editor prints, one after each change.
func (e *editor) Write(text []byte) (int, error) {
	e.runs.Add(int64(bytes.Count(text, []byte("\n"))))
	return len(text), nil
}

// await waits until the editor has changed tables n times.
func (e *editor) await(t *testing.T, n int64) {
	t.Helper()
	for deadline := time.Now().Add(3 * testTimeout); e.runs.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("another program changed tables %d times, want %d", e.runs.Load(), n)
		}
	}
}

// edits runs a shell command in a namespace repeatedly, with a pause or without.
func edits(t testing.TB, netns int, pause time.Duration, command string) *editor {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	loop := "while :; do { " + command + "; } >/dev/null; echo; sleep " + fmt.Sprint(pause.Seconds()) + "; done"
	if pause == 0 {
		loop = "while :; do { " + command + "; } >/dev/null; echo; done"
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", loop)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	e := &editor{stop: func() {
		cancel()
		_ = cmd.Wait()
	}}
	cmd.Stdout = e
	kerneltest.Do(t, netns, cmd.Start)
	t.Cleanup(e.stop)
	return e
}

// waitForRules waits until a comparison finds no difference.
func waitForRules(t testing.TB, netns int) {
	t.Helper()
	var d []inspect.Step
	var err error
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		d, err = admin.All[inspect.Step](admin.Dial(admin.Options{NetNS: netns}).Ask(context.Background(), "/diff", nil))
		if err == nil && len(d) == 0 {
			return
		}
	}
	t.Fatalf("a comparison still has %d steps (%v)", len(d), err)
}

// After another program has changed rules in a tight loop, all rules are repaired, in every mode and without a request.
func TestRulesAreRepairedAfterALoopOfEdits(t *testing.T) {
	seeds.Long(t)
	const mode = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" +
		"conntrack: {maxPerCore: 0}\nmode: "
	for _, tt := range []struct{ name, mode, hint, command string }{
		{"nftables", "nftables", "true", "nft flush ruleset"},
		{"nft", "iptables", "iptables-nft -t mangle -N KUBE-IPTABLES-HINT", "iptables-nft -t nat -F"},
		{"legacy", "iptables", "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", "iptables-legacy -w 5 -t nat -F"},
		{
			"legacy one chain", "iptables", "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT",
			"iptables-legacy -w 5 -t nat -F KUBE-SERVICES",
		},
		{
			"legacy jumps", "iptables", "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT",
			"iptables-legacy -w 5 -t nat -F PREROUTING; iptables-legacy -w 5 -t nat -F OUTPUT",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := t.TempDir() + "/config.yaml"
			write(t, path, mode+tt.mode+"\niptables: {syncPeriod: 10s}\n") // legacy tables are polled each second
			netns := kerneltest.Namespace(t)
			kerneltest.Do(t, netns, exec.Command("/bin/sh", "-c", tt.hint).Run)
			r := daemonIn(t, netns, path, "--manifests="+manifests(t, manyServices(200)))
			r.sync()
			r.drain()
			e := edits(t, netns, 0, tt.command)
			e.await(t, int64(seeds.Rounds(t, 300)))
			e.stop()
			waitForRules(t, netns)
		})
	}
}

// BenchmarkRulesDuringEdits measures in which share of samples the rules exist while another program flushes them with
// a pause, and the CPU time of the daemon, which is a separate process.
func BenchmarkRulesDuringEdits(b *testing.B) {
	program, err := harness.ProgramIn(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	services := manifests(b, manyServices(200))
	for _, tt := range []struct{ name, mode, hint, command, probe string }{
		{"nftables", "nftables", "true", "nft flush ruleset", "nft list chain ip sluice prerouting | grep -q services"},
		{
			"nft", "iptables", "iptables-nft -t mangle -N KUBE-IPTABLES-HINT", "iptables-nft -t nat -F",
			"iptables-nft -t nat -S PREROUTING | grep -q KUBE-SERVICES",
		},
		{
			"legacy", "iptables", "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", "iptables-legacy -w 5 -t nat -F",
			"iptables-legacy -w 5 -t nat -S PREROUTING | grep -q KUBE-SERVICES",
		},
	} {
		for _, pause := range []time.Duration{time.Second, 500 * time.Millisecond, 100 * time.Millisecond} {
			b.Run(fmt.Sprintf("%s/every %v", tt.name, pause), func(b *testing.B) {
				netns := kerneltest.Namespace(b)
				daemon := exec.Command(program, "--manifests="+services, "--proxy-mode="+tt.mode, "--oom-score-adj=0",
					"--conntrack-max-per-core=0")
				kerneltest.Do(b, netns, exec.Command("/bin/sh", "-c", tt.hint).Run)
				kerneltest.Do(b, netns, daemon.Start)
				waitForRules(b, netns)
				e := edits(b, netns, pause, tt.command)
				time.Sleep(6 * time.Second) // until the daemon knows that the rules are contested
				present, samples := 0, 0
				for b.Loop() {
					for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
						samples++
						kerneltest.Do(b, netns, func() error {
							if exec.Command("/bin/sh", "-c", tt.probe).Run() == nil {
								present++
							}
							return nil
						})
					}
				}
				e.stop()
				_ = daemon.Process.Signal(os.Interrupt)
				_ = daemon.Wait()
				state := daemon.ProcessState
				b.ReportMetric(100*float64(present)/float64(samples), "%-present")
				b.ReportMetric((state.UserTime() + state.SystemTime()).Seconds(), "s-CPU")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
