package ebpf_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// If the host lacks a requirement, the log names the remedy, and the packet plane serves alone.
func TestWithoutProgramsThePacketPlaneServes(t *testing.T) {
	kerneltest.NeedPrograms(t)
	good := config.EBPF{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t)}
	for name, c := range map[string]struct {
		at   config.EBPF
		want string
	}{
		"no bpffs": {
			config.EBPF{Dir: "/run/sluice", Cgroup: good.Cgroup}, "mount it with: mount -t bpf -o mode=700 bpf /sys/fs/bpf",
		},
		"not a cgroup": {config.EBPF{Dir: good.Dir, Cgroup: "/run"}, "name the folder with --cgroup-root"},
		"read-only pins": {
			config.EBPF{Dir: filepath.Join(readOnly(t, filepath.Dir(good.Dir)), "sluice"), Cgroup: good.Cgroup},
			"a bpffs that is writable",
		},
		"no such group": {config.EBPF{Dir: good.Dir, Cgroup: good.Cgroup + "/none"}, "name the folder with --cgroup-root"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			opened := openAt(t, c.at, &log)
			if _, is := opened.Plane.(*nftables.Plane); !is {
				t.Errorf("the plane is %T", opened.Plane)
			}
			shares := reflect.ValueOf(nftables.Kind().Facts.Shares).Pointer()
			if f := opened.Facts; f == nil || f.Name != "ebpf" || reflect.ValueOf(f.Shares).Pointer() != shares {
				t.Errorf("its facts are %+v, want those of packets in mode ebpf", f)
			}
			if f := opened.Fallback; f.Mode != "nftables" || !strings.Contains(f.Reason, c.want) {
				t.Errorf("its fallback is %+v, want nftables and %q", f, c.want)
			}
			if text := log.String(); !strings.Contains(text, "Sockets are not balanced") || !strings.Contains(text, c.want) {
				t.Errorf("it says %q, want %q", text, c.want)
			}
			err := probe.Sockets(bpf.Options{Dir: c.at.Dir, Cgroup: c.at.Cgroup})
			if !errors.Is(err, probe.ErrFeature) && !errors.Is(err, probe.ErrPrivilege) {
				t.Errorf("the probe returns %v, want %v or %v", err, probe.ErrFeature, probe.ErrPrivilege)
			}
		})
	}
	var log bytes.Buffer
	opened := openAt(t, config.EBPF{Dir: good.Dir, Cgroup: readOnly(t, good.Cgroup)}, &log)
	_, is := opened.Plane.(*ebpf.Plane)
	if !is || opened.Facts != nil || opened.Fallback.Mode != "" || strings.Contains(log.String(), "WARN") {
		t.Errorf("the plane is %T: %s", opened.Plane, &log)
	}
	if _, err := os.Stat(good.Dir); !os.IsNotExist(err) {
		t.Errorf("the probe leaves %s: %v", good.Dir, err)
	}
}

// readOnly mounts a cgroup at another place, read-only, as a container has it.
func readOnly(t *testing.T, cgroup string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(cgroup, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openAt(t *testing.T, at config.EBPF, log *bytes.Buffer) *plane.Opened {
	t.Helper()
	return openTestedBy(t, probe.Sockets, plane.Setup{Config: &config.Config{MasqueradeMark: 0x4000, EBPF: at}}, log)
}

func openTestedBy(t *testing.T, test func(bpf.Options) error, s plane.Setup, log *bytes.Buffer) *plane.Opened {
	t.Helper()
	s.NetNS, s.Families, s.Log = kerneltest.Namespace(t), route.Families(), slog.New(slog.NewTextHandler(log, nil))
	opened, err := ebpf.KindTestedBy(test, nftables.Kind()).Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() }) // nothing was written
	return opened
}

// A kind with the result of a self-test does what it says: the result of a self-test that has run is not tried again.
func TestResultOfASelfTest(t *testing.T) {
	kerneltest.NeedPrograms(t)
	at := config.EBPF{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t)}
	for _, result := range []error{nil, probe.ErrFeature} {
		s := plane.Setup{Config: &config.Config{MasqueradeMark: 0x4000, EBPF: at}}
		var log bytes.Buffer
		s.NetNS, s.Families, s.Log = kerneltest.Namespace(t), route.Families(), slog.New(slog.NewTextHandler(&log, nil))
		kind := ebpf.KindTestedBy(func(bpf.Options) error { return result }, nftables.Kind())
		if err := kind.Beyond(s); !errors.Is(err, result) {
			t.Errorf("Beyond returns %v, want %v", err, result)
		}
		opened, err := kind.Open(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		_, serves := opened.Plane.(*ebpf.Plane)
		if serves != (result == nil) {
			t.Errorf("with the result %v it serves: %t; it says %s", result, serves, &log)
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
}
