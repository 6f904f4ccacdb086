package kernelspace

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// thisHost is a Host.
type thisHost struct{}

func (thisHost) Primary() ([]netip.Addr, error) {
	return planetest.Addrs("2001:db8::1", "192.168.0.2"), nil
}

func (thisHost) HardwareAddr(a netip.Addr) (string, error) {
	if a != netip.MustParseAddr("192.168.0.2") {
		return "", errors.New("another address")
	}
	return "00:15:5d:00:00:02", nil
}

// setup returns the Setup of a configuration, and its log.
func setup(h config.HNS) (plane.Setup, *bytes.Buffer) {
	var log bytes.Buffer
	return plane.Setup{
		Config:   &config.Config{HNS: h, Healthz: netip.MustParseAddrPort("0.0.0.0:10256"), SyncPeriod: 30 * time.Second},
		Families: route.Families(), Log: slog.New(slog.NewTextHandler(&log, nil)),
	}, &log
}

// Each capability that HNS lacks is a sentence.
func TestProbe(t *testing.T) {
	fake := hnstest.New(hns.Network{Name: networkName, Type: hns.L2Bridge})
	k := Kind(fake, thisHost{})
	s, err := k.Probe(t.Context(), 0)
	if err != nil || !s.IPv4 || !s.IPv6 || len(s.Notes) > 0 {
		t.Errorf("a recent HNS: %+v, %v", s, err)
	}
	fake.Version = hns.Features{V2: true}
	s, err = k.Probe(t.Context(), 0)
	want := plane.Support{IPv4: true, Notes: []string{
		"IPv6 is not served: this version of HNS has no dual stack: use Windows Server 2022 or newer",
		"HNS has no direct server return: externalTrafficPolicy Local hides the addresses of clients, " +
			"and preserve-destination has no effect",
		"HNS has no remote subnets: overlay networks are not served",
		"HNS has no session affinity: Services with it are served without",
		"HNS cannot change load balancers in place: a changed one is deleted and created again, " +
			"and connections in between fail",
	}}
	if diff := cmp.Diff(want, s); err != nil || diff != "" {
		t.Errorf("an old HNS: %v\n%s", err, diff)
	}
	fake.Version = hns.Features{}
	if _, err = k.Probe(t.Context(), 0); !errors.Is(err, probe.ErrFeature) ||
		!strings.Contains(err.Error(), "Windows Server 2019") {
		t.Error("without API version 2:", err)
	}
	for cause, want := range map[error]error{hns.ErrDenied: probe.ErrPrivilege, hns.ErrNoService: probe.ErrFeature} {
		if _, err := Kind(broken{fake, cause}, thisHost{}).Probe(t.Context(), 0); !errors.Is(err, want) {
			t.Error(cause, err)
		}
	}
}

// broken is an HNS that does not answer.
type broken struct {
	HNS
	err error
}

func (b broken) Features(context.Context) (hns.Features, error) { return hns.Features{}, b.err }

// What the configuration asks for and HNS cannot do is an error at start.
func TestOpenRefuses(t *testing.T) {
	old, vip := hns.Features{V2: true}, netip.MustParseAddr("10.180.99.1")
	for name, tc := range map[string]struct {
		network hns.NetworkType
		has     *hns.Features
		with    config.HNS
		want    string
	}{
		"no network":       {hns.L2Bridge, nil, config.HNS{}, "KUBE_NETWORK"},
		"no DSR":           {hns.L2Bridge, &old, config.HNS{Network: networkName, DSR: true}, "--enable-dsr"},
		"no source VIP":    {hns.Overlay, nil, config.HNS{Network: networkName}, "--source-vip"},
		"no remote subnet": {hns.Overlay, &old, config.HNS{Network: networkName, SourceVIP: vip}, "no remote subnets"},
	} {
		fake := hnstest.New(hns.Network{Name: networkName, Type: tc.network})
		if tc.has != nil {
			fake.Version = *tc.has
		}
		s, _ := setup(tc.with)
		if _, err := Kind(fake, thisHost{}).Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The plane opens without the network and says that it waits. The network is found within a second of
// its creation; so is another one with the same name.
func TestTheNetworkIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subject := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
		fake := subject.fake
		fake.DeleteNetwork(networkName)
		s, log := setup(config.HNS{Network: networkName})
		opened, err := Kind(fake, thisHost{}).Open(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		const waits = `HNS network "cbr0" does not exist`
		if !strings.Contains(opened.Waiting(), waits) ||
			!strings.Contains(log.String(), "does not exist: waiting for the CNI plugin") {
			t.Errorf("%q, log:\n%s", opened.Waiting(), log)
		}
		p := opened.Plane
		if err := p.Refresh(t.Context()); !errors.Is(err, hns.ErrNotFound) {
			t.Error(err)
		}
		edits := watch(t, p)
		change := planetest.Compile(planetest.EveryShape(), options())
		for range 2 {
			fake.AddNetwork(hns.Network{Name: networkName, Type: hns.L2Bridge})
			subject.addPods()
			time.Sleep(networkPeriod + time.Millisecond)
			if edits() != 1 {
				t.Error("the network was made, and nothing was reported")
			}
			apply(t, p, change)
			if waits := opened.Waiting(); waits != "" {
				t.Error(waits)
			}
			same(t, subject)
			fake.DeleteNetwork(networkName)
			time.Sleep(networkPeriod + time.Millisecond)
			if edits() != 1 || !strings.Contains(opened.Waiting(), waits) {
				t.Error("the network was deleted, and nothing was reported")
			}
		}
	})
}

// watch watches until the end of the test. It returns a function that returns how many edits were
// reported since the last call.
func watch(t *testing.T, p plane.Plane) func() int {
	t.Helper()
	var mu sync.Mutex
	n := 0
	subscribed := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = p.Watch(ctx, func() { close(subscribed) }, func(plane.Edit) {
			mu.Lock()
			defer mu.Unlock()
			n++
		})
	})
	<-subscribed
	t.Cleanup(func() { cancel(); running.Wait() })
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		seen := n
		n = 0
		return seen
	}
}

// apply reads HNS and writes what a change lacks.
func apply(t testing.TB, p plane.Plane, change route.Change) {
	t.Helper()
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Plan(change).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// same verifies that HNS holds every shape of a Service as if it had been written at once.
func same(t *testing.T, s *subject) {
	t.Helper()
	got, err := s.state(nil)
	if err != nil {
		t.Fatal(err)
	}
	fresh := s.scratch()
	opt := s.options()
	opt.DSR, opt.RootEndpoint = false, ""
	write(t, New(fresh.fake, opt), planetest.Compile(planetest.EveryShape(), options()))
	want, err := fresh.state(nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A preview needs no HNS.
func TestPreview(t *testing.T) {
	s, _ := setup(config.HNS{Network: networkName})
	p := Kind(nil, nil).Preview(s)
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(planetest.Compile(planetest.EveryShape(), options()))
	if text := plan.String(); !strings.Contains(text, "add load balancer 172.30.0.2 protocol 6 port 80 -> 8080") {
		t.Error(text)
	}
}

// Remove deletes what a run made, also if DSR and the source VIP are no longer configured.
func TestRemoveOfTheKind(t *testing.T) {
	for _, network := range []hns.NetworkType{hns.L2Bridge, hns.Overlay} {
		subject := newSubject(network, func(*hnstest.Fake) {})
		before, err := subject.state(nil)
		if err != nil {
			t.Fatal(err)
		}
		write(t, New(subject.fake, subject.options()), planetest.Compile(planetest.EveryShape(), options()))
		k := Kind(subject.fake, thisHost{})
		s, _ := setup(config.HNS{})
		if removed, err := k.Remove(t.Context(), s); err != nil || len(removed) > 0 {
			t.Error("no network is configured:", removed, err)
		}
		s, _ = setup(config.HNS{Network: networkName, DSR: true})
		removed, err := k.Remove(t.Context(), s)
		if err != nil || len(removed) != 2 || !strings.HasSuffix(removed[0], " load balancers") {
			t.Error(network, removed, err)
		}
		after, err := subject.state(nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s: %s", network, diff)
		}
	}
}

// Failed writes of load balancers are counted as kube-proxy counts them.
func TestFailuresAreCounted(t *testing.T) {
	subject := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	subject.fake.Refuse = func(line string) error {
		if strings.HasPrefix(line, "create 172.30.0.2 protocol 6") {
			return hns.ErrInvalidIP
		}
		return nil
	}
	s, _ := setup(config.HNS{Network: networkName})
	opened, err := Kind(subject.fake, thisHost{}).Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = opened.Plane.Plan(planetest.Compile(planetest.EveryShape(), options())).Apply(t.Context())
	if refused, is := errors.AsType[plane.Refused](err); !is || len(refused) != 1 {
		t.Fatal(err)
	}
	got := metricstest.Values(t, metricstest.Registry(opened.Metrics()...), "")
	if !strings.Contains(got,
		`winkernel_lb_create_failures_total{error="invalid_ip", ip_family="IPv4", lb_type="clusterip"}`) {
		t.Error(got)
	}
	if names := slices.Collect(strings.SplitSeq(got, "\n")); len(names) != 1 {
		t.Error(got)
	}
}

// slow is an HNS that takes time to list load balancers.
type slow struct{ HNS }

func (s slow) LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error) {
	time.Sleep(time.Second)
	return s.HNS.LoadBalancers(ctx)
}

// Comparisons without a cause come every half minute, and less often if HNS takes long.
func TestPeriodOfComparisons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subject := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
		for h, want := range map[HNS]time.Duration{subject.fake: pollPeriod, (slow{subject.fake}): readPause * time.Second} {
			p := New(h, subject.options())
			if err := p.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			edits := watch(t, p)
			time.Sleep(want - time.Second)
			early := edits()
			time.Sleep(2 * time.Second)
			if late := edits(); early != 0 || late != 1 {
				t.Errorf("%T: %d edits before %s, %d after", h, early, want, late)
			}
		}
	})
}
