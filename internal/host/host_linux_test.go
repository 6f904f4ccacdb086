package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

const (
	established = "net.netfilter.nf_conntrack_tcp_timeout_established"
	closeWait   = "net.netfilter.nf_conntrack_tcp_timeout_close_wait"
)

// fresh is a host with the defaults of the kernel.
func fresh() map[string]string {
	return map[string]string{
		maximum: "65536", hashsize: "16384", oom: "0",
		established: "432000", closeWait: "60",
		"/sys/devices/system/cpu/online": "0-3,8",
	}
}

func file(root, name string) string {
	if strings.HasPrefix(name, "/") {
		return filepath.Join(root, name)
	}
	return filepath.Join(root, "proc/sys", strings.ReplaceAll(name, ".", "/"))
}

// tree creates a folder that stands for /.
func tree(t *testing.T, values map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, value := range values {
		path := file(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// values reads a tree.
func values(t *testing.T, root string, names map[string]string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for name := range names {
		data, err := os.ReadFile(file(root, name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = strings.TrimSpace(string(data))
	}
	return got
}

// defaults are the settings of kube-proxy without configuration.
func defaults() *config.Config {
	return &config.Config{OOMScoreAdj: -999, Conntrack: config.Conntrack{
		MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour,
	}}
}

// A fresh host gets all settings, and the effects have the values before.
func TestConfigure(t *testing.T) {
	root := tree(t, fresh())
	h := host.New(host.Options{Root: root})
	if err := h.Configure(defaults()); err != nil {
		t.Fatal(err)
	}
	want := fresh()
	maps.Copy(want, map[string]string{
		maximum: "163840", hashsize: "40960", oom: "-999", established: "86400", closeWait: "3600",
	})
	if diff := cmp.Diff(want, values(t, root, want)); diff != "" {
		t.Errorf("the host (-want +got):\n%s", diff)
	}
	effects := []host.Effect{
		{Name: maximum, Wanted: "163840", Was: "65536", Is: "163840"},
		{Name: hashsize, Wanted: "40960", Was: "16384", Is: "40960"},
		{Name: established, Wanted: "86400", Was: "432000", Is: "86400"},
		{Name: closeWait, Wanted: "3600", Was: "60", Is: "3600"},
		{Name: oom, Wanted: "-999", Was: "0", Is: "-999"},
	}
	if diff := cmp.Diff(effects, h.Effects()); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}

// Settings that the host has already are not written, so that a process without
// privileges can run after --init-only (S-292).
func TestNothingIsWrittenTwice(t *testing.T) {
	root := tree(t, fresh())
	c := defaults()
	if err := host.New(host.Options{Root: root}).Prepare(c); err != nil {
		t.Fatal(err)
	}
	if got := values(t, root, fresh()); got[closeWait] != "3600" || got[oom] != "0" {
		t.Errorf("prepared: %v", got)
	}
	long := time.Now().Add(-time.Hour)
	for name := range fresh() {
		if err := os.Chtimes(file(root, name), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if err := host.New(host.Options{Root: root}).Configure(c); err != nil {
		t.Fatal(err)
	}
	var written []string
	for name := range fresh() {
		info, err := os.Stat(file(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.ModTime().After(long) {
			written = append(written, name)
		}
	}
	if !slices.Equal(written, []string{oom}) {
		t.Errorf("written again: %v", written)
	}
}

// A table that is larger than needed stays.
func TestLargerTableStays(t *testing.T) {
	now := fresh()
	now[hashsize] = "1000000"
	h := host.New(host.Options{Root: tree(t, now)})
	if err := h.Configure(defaults()); err != nil {
		t.Fatal(err)
	}
	want := host.Effect{Name: hashsize, Wanted: "40960", Was: "1000000", Is: "1000000"}
	if got := h.Effects()[1]; got != want {
		t.Errorf("effect %+v, want %+v", got, want)
	}
}

// A setting that cannot be written is named, and the others are written.
func TestOneSettingFails(t *testing.T) {
	now := fresh()
	delete(now, closeWait)
	root := tree(t, now)
	h := host.New(host.Options{Root: root})
	err := h.Configure(defaults())
	if err == nil ||
		!strings.HasPrefix(err.Error(), "settings of the host: read sysctl "+closeWait+": no such kernel parameter") {
		t.Errorf("error %v", err)
	}
	if got := values(t, root, now)[oom]; got != "-999" {
		t.Errorf("what comes after it: %s", got)
	}
	want := []host.Effect{{Name: closeWait, Wanted: "3600"}}
	got := slices.DeleteFunc(h.Effects(), func(e host.Effect) bool { return e.Err == nil })
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(host.Effect{}, "Err")); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
}

// The error has all failures on one line.
func TestFailures(t *testing.T) {
	now := fresh()
	delete(now, closeWait)
	delete(now, oom)
	err := host.New(host.Options{Root: tree(t, now)}).Configure(defaults())
	const one = `read [^;\n]*%s[^;\n]*`
	want := regexp.MustCompile(fmt.Sprintf(`^settings of the host: `+one+`; `+one+`$`, closeWait, oom))
	if err == nil || !want.MatchString(err.Error()) {
		t.Errorf("error %v", err)
	}
}

// A value that the kernel changes is an error.
func TestKernelChangesTheValue(t *testing.T) {
	now := fresh()
	root := tree(t, now)
	if err := os.Remove(file(root, oom)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", file(root, oom)); err != nil { // takes all, holds nothing
		t.Fatal(err)
	}
	err := host.New(host.Options{Root: root}).Configure(defaults())
	if err == nil || !strings.Contains(err.Error(), "set "+oom+"=-999: the kernel made it") {
		t.Errorf("error %v", err)
	}
}

// Compare returns what Configure would write, and writes nothing.
func TestCompare(t *testing.T) {
	now := fresh()
	root := tree(t, now)
	c := defaults()
	c.Conntrack.UDP = time.Minute // the host lacks it
	h := host.New(host.Options{Root: root})
	got := map[string]host.Effect{}
	for _, e := range h.Compare(c) {
		got[e.Name] = e
	}
	if diff := cmp.Diff(now, values(t, root, now)); diff != "" {
		t.Errorf("it wrote (-before +after):\n%s", diff)
	}
	const udp = "net.netfilter.nf_conntrack_udp_timeout"
	if e := got[udp]; !errors.Is(e.Err, sysctl.ErrNotFound) || e.Wanted != "60" {
		t.Errorf("a missing parameter: %+v", e)
	}
	if e := got[maximum]; e.Err != nil || e.Is != "65536" || e.Wanted == e.Is {
		t.Errorf("the limit: %+v", e)
	}
	if _, listed := got[oom]; listed {
		t.Error("the OOM score belongs to a process")
	}
	delete(now, "/sys/devices/system/cpu/online")
	c.Conntrack.UDP = 0
	if err := h.Configure(c); err != nil {
		t.Fatal(err)
	}
	if rest := h.Compare(c); len(rest) != 0 {
		t.Errorf("after Configure: %+v", rest)
	}
}

// CPUs counts the online CPUs, or if it cannot read them, those that this process may use.
func TestCPUs(t *testing.T) {
	for list, want := range map[string]int{
		"0": 1, "0-3": 4, "0-3,8": 5, "0,2,4-5": 4, "0-63\n": 64,
		"": runtime.NumCPU(), "all": runtime.NumCPU(), "3-1": runtime.NumCPU(),
	} {
		h := host.New(host.Options{Root: tree(t, map[string]string{"/sys/devices/system/cpu/online": list})})
		if got := h.CPUs(); got != want {
			t.Errorf("%q: %d CPUs, want %d", list, got, want)
		}
	}
	if got := host.New(host.Options{Root: t.TempDir()}).CPUs(); got != runtime.NumCPU() {
		t.Errorf("nothing there: %d CPUs", got)
	}
}

// In a network namespace that is not the host's the size cannot be set, which the error
// says; the timeouts, which each namespace has, are set.
func TestNamespaceThatIsNotTheHosts(t *testing.T) {
	netns := kerneltest.Namespace(t)
	kerneltest.Do(t, netns, func() error {
		info, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max")
		if err == nil && info.Mode().Perm()&0o222 != 0 {
			t.Skip("this kernel has a limit for each network namespace")
		}
		return err
	})
	h := host.New(host.Options{NetNS: netns})
	limit := func() int {
		text, err := sysctl.New(sysctl.Options{NetNS: netns}).Get(maximum)
		n, wrong := strconv.Atoi(text)
		if err != nil || wrong != nil {
			t.Fatalf("limit %q, %v", text, err)
		}
		return n
	}
	before := limit()
	c := config.Conntrack{MaxPerCore: 1, Min: before + 4, TCPCloseWait: time.Hour}
	settings := slices.DeleteFunc(host.Lasting(&config.Config{Conntrack: c}, 1),
		func(s host.Setting) bool { return s.Name == hashsize })
	failed := h.Apply(settings)
	effects := h.Effects()
	if len(effects) != 2 || effects[1].Err != nil || effects[1].Is != "3600" {
		t.Errorf("effects %+v", effects)
	}
	if failed == nil {
		t.Error("no failure is reported")
	}
	if err := effects[0].Err; !errors.Is(err, fs.ErrPermission) ||
		!strings.Contains(err.Error(), "network namespace that is not the host's") {
		t.Errorf("error %v", err)
	}
	if after := limit(); after != before {
		t.Errorf("limit %d, was %d", after, before)
	}
}
