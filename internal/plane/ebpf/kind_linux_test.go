package ebpf_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// What a host lacks is said with the remedy, and the plane then is the one beneath.
func TestWithoutProgramsThePacketPlaneServes(t *testing.T) {
	kerneltest.NeedPrograms(t)
	good := config.EBPF{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t)}
	for name, c := range map[string]struct {
		at   config.EBPF
		want string
	}{
		"no bpffs":      {config.EBPF{Dir: "/run/sluice", Cgroup: good.Cgroup}, "mount it with: mount -t bpf bpf /sys/fs/bpf"},
		"not a cgroup":  {config.EBPF{Dir: good.Dir, Cgroup: "/run"}, "name the folder with --cgroup-root"},
		"no such group": {config.EBPF{Dir: good.Dir, Cgroup: good.Cgroup + "/none"}, "name the folder with --cgroup-root"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			opened := openAt(t, c.at, &log)
			if _, is := opened.Plane.(*nftables.Plane); !is {
				t.Errorf("the plane is %T", opened.Plane)
			}
			if text := log.String(); !strings.Contains(text, "Sockets are not balanced") || !strings.Contains(text, c.want) {
				t.Errorf("it says %q, want %q", text, c.want)
			}
			if err := probe.Sockets(bpf.Options{Dir: c.at.Dir, Cgroup: c.at.Cgroup}); !errors.Is(err, probe.ErrFeature) {
				t.Errorf("the probe returns %v, want %v", err, probe.ErrFeature)
			}
		})
	}
	var log bytes.Buffer
	opened := openAt(t, good, &log)
	if _, is := opened.Plane.(*ebpf.Plane); !is || strings.Contains(log.String(), "WARN") {
		t.Errorf("the plane is %T: %s", opened.Plane, &log)
	}
	if left, err := filepath.Glob(filepath.Join(good.Cgroup, "sluice-*")); err != nil || len(left) > 0 {
		t.Errorf("the probe leaves %v, %v", left, err)
	}
	if _, err := os.Stat(good.Dir); !os.IsNotExist(err) {
		t.Errorf("the probe leaves %s: %v", good.Dir, err)
	}
}

func openAt(t *testing.T, at config.EBPF, log *bytes.Buffer) *plane.Opened {
	t.Helper()
	opened, err := ebpf.Kind(nftables.Kind()).Open(t.Context(), plane.Setup{
		Config: &config.Config{MasqueradeMark: 0x4000, EBPF: at}, NetNS: kerneltest.Namespace(t), Families: planetest.Families(),
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() }) // nothing was written
	return opened
}
