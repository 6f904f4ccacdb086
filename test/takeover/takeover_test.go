//go:build linux

package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/test/apiserver"
)

func TestTakeover(t *testing.T) {
	c := apiserver.Start(t)
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Run("recorded", func(t *testing.T) { testRecorded(newWorld(t, c), m) })
			if program() == "" {
				t.Log("there is no real kube-proxy (KUBE_PROXY): only what it leaves was tested")
				return
			}
			t.Run("kube-proxy first stopped", func(t *testing.T) { testAfter(newWorld(t, c), m) })
			t.Run("kube-proxy stopped last", func(t *testing.T) { testBeside(newWorld(t, c), m) })
		})
	}
}

// foreign are rules of others, in all variants: a CNI plugin's, a person's, and
// kubelet's, which are called as kube-proxy's are.
const foreign = `
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "kubernetes service portals" -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp --dport 9999 -j REDIRECT --to-ports 9998
-A POSTROUTING -p tcp --dport 9997 -j MASQUERADE
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:MY-RULES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A INPUT -p tcp --dport 9996 -j MY-RULES
-A MY-RULES -j DROP
COMMIT
`

// localnet is a rule of kubelet's, in IPv4 alone, that kube-proxy wants as well.
const localnet = `-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" ` +
	"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n"

// others loads the rules of others.
func (w *world) others(m mode) {
	w.Helper()
	w.lab.NodeA.Nft("table inet others { chain input { type filter hook input priority 0; tcp dport 9995 drop; }; }")
	if m.iptables == "" {
		return
	}
	folder := programs(w.T, m.iptables)
	for restore, rules := range map[string]string{
		"iptables-restore":  strings.TrimSuffix(foreign, "COMMIT\n") + localnet,
		"ip6tables-restore": foreign,
	} {
		_, err := w.lab.NodeA.Run(rules, folder+"/"+restore)
		w.must(err)
	}
}

// takeOver starts Sluice, and what takes over when its rules are in force.
func (w *world) takeOver() *takeover.Keeper {
	w.Helper()
	p := w.Cluster.Run(w, w.lab.NodeA, "--cluster-cidr="+clusterCIDRs)
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	k := takeover.New(takeover.Options{
		NetNS: w.lab.NodeA.NetNSFD(), Log: slog.New(slog.NewTextHandler(w.Output(), nil)),
		Dial: w.dial, Soon: 50 * time.Millisecond,
	}, ready)
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the take-over ended with: %v", err)
		}
	})
	if _, err := p.First(w.Context()); err != nil {
		w.Fatal(err)
	}
	close(ready)
	return k
}

// dial connects on node A.
func (w *world) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := w.lab.NodeA.Do(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// clean waits until nothing is left and nobody runs.
func (w *world) clean(k *takeover.Keeper) {
	w.Helper()
	w.eventually(func() error {
		if s := k.State(); !s.Looked || s.Rival != nil || s.Err != nil || len(s.Leftovers) > 0 || len(s.Removed) == 0 {
			return fmt.Errorf("the take-over is at %+v", s)
		}
		return nil
	})
}

// same says what differs from before there was a kube-proxy.
func (w *world) same(before string) {
	w.Helper()
	if diff := cmp.Diff(before, w.dump()); diff != "" {
		w.Errorf("not as without kube-proxy (-before, +now):\n%s", diff)
	}
}

// settled gives traffic the time to suffer.
func (w *world) settled(t *traffic) {
	w.Helper()
	time.Sleep(500 * time.Millisecond)
	if err := t.end(); err != nil {
		w.Error(err)
	}
	w.Logf("%d messages on connections that exist, %d new connections", t.messages.Load(), t.connections.Load())
	w.must(w.reachable())
}

// testAfter: kube-proxy is stopped, then Sluice started.
func testAfter(w *world, m mode) {
	w.others(m)
	before := w.dump()
	kp := w.kubeProxy(m)
	traffic := w.start()
	kp.end()
	if w.dump() == before {
		w.Fatal("kube-proxy left nothing, so there is nothing to take over")
	}
	k := w.takeOver()
	w.clean(k)
	w.same(before)
	w.settled(traffic)
}

// testBeside: Sluice is started while kube-proxy runs, which is then stopped.
func testBeside(w *world, m mode) {
	w.others(m)
	before := w.dump()
	kp := w.kubeProxy(m)
	traffic := w.start()
	k := w.takeOver()
	w.eventually(func() error {
		if k.State().Rival == nil {
			return errors.New("kube-proxy is not noticed")
		}
		return nil
	})
	want := takeover.Rival{PID: kp.pid, Mode: m.mode, How: "a process of this name"}
	if diff := cmp.Diff(want, *k.State().Rival); diff != "" {
		w.Errorf("noticed (-want +got):\n%s", diff)
	}
	beside := w.dump()
	time.Sleep(300 * time.Millisecond)
	if diff := cmp.Diff(beside, w.dump()); diff != "" {
		w.Errorf("rules changed while both run (-before, +now):\n%s", diff)
	}
	kp.end()
	w.clean(k)
	w.same(before)
	w.settled(traffic)
}
