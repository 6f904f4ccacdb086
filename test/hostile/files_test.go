//go:build linux

package hostile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
)

// checkEncodings verifies for each file that both Services are served or that the file is reported.
func checkEncodings(s *attackTest) {
	s.Helper()
	putEncodings(s) // removeHostile deleted them
	s.eventually(changeTimeout(), func() error {
		for i, e := range encodings() {
			if err := s.servedOrReported(e.file, encodedIPs(i)); err != nil {
				return err
			}
		}
		return nil
	})
	for i, e := range encodings() { // report every failed file, not only the first
		if err := s.servedOrReported(e.file, encodedIPs(i)); err != nil {
			s.Error(err)
		}
	}
	s.removeHostile()
}

func (s *attackTest) servedOrReported(file string, ips [2]string) error {
	for _, ip := range ips {
		if !s.answers(s.client, netip.AddrPortFrom(netip.MustParseAddr(ip), 80), s.pods[0]) {
			if s.reported(file) {
				return nil
			}
			return fmt.Errorf("%s: a Service in it is not served, and the file is not reported", file)
		}
	}
	return nil
}

// reported reports whether the status or the log mentions a text.
func (s *attackTest) reported(text string) bool {
	out, _ := s.runSluice("status", "-o", "json")
	return strings.Contains(out, text) || strings.Contains(s.daemon.Log.String(), text)
}

// checkReported verifies that the status or the log mentions a text.
func (s *attackTest) checkReported(text string) {
	s.Helper()
	if !s.reported(text) {
		s.Errorf("neither status nor log mention %q", text)
	}
}

// putDuplicates writes Services with duplicate keys.
func putDuplicates(s *attackTest) {
	s.Helper()
	s.must(s.put("duplicate.json", []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"twice"},
"spec":{"clusterIP":"172.30.9.9","clusterIP":"172.30.9.10","ports":[{"port":80,"port":81}],"ports":[{"port":82}]}}`)))
	s.must(s.put("duplicate.yaml", []byte(`apiVersion: v1
kind: Service
kind: Service
metadata: {name: again, name: "`+changingIP+`"}
spec: {clusterIP: 172.30.9.11, clusterIP: 172.30.9.12, ports: [{port: 80}], ports: [{port: 80}]}
`)))
}

// putSparse writes a sparse file of 4 GB.
func putSparse(s *attackTest) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.dir, "hostile.yaml"), []byte("# "), 0o644))
	s.must(os.Truncate(filepath.Join(s.dir, "hostile.yaml"), 4<<30))
}

// growSparse extends the file repeatedly.
func growSparse(ctx context.Context, s *attackTest) error {
	var errs []error
	for n := int64(1); ctx.Err() == nil; n++ {
		errs = append(errs, os.Truncate(filepath.Join(s.dir, "hostile.yaml"), 4<<30+n))
		s.pause(ctx, 100*time.Millisecond)
	}
	return errors.Join(errs...)
}

// specialFiles creates files that open slowly or never, or never end.
func specialFiles(dir string) error {
	path := func(name string) string { return filepath.Join(dir, name) }
	var errs []error
	for name, to := range map[string]string{
		"zero.yaml": "/dev/zero", "full.json": "/dev/full", "memory.yaml": "/proc/self/mem",
		"loop.yaml": path("loop.yaml"), "lost.yaml": path("nothing"), "linked-fifo.yaml": path("fifo.yaml"),
		"folder-link.yaml": "/", "mounts.yaml": "/proc/self/pagemap",
	} {
		errs = append(errs, os.Symlink(to, path(name)))
	}
	return errors.Join(append(errs,
		unix.Mkfifo(path("fifo.yaml"), 0o644),
		unix.Mknod(path("device.yaml"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))),
		unix.Mknod(path("socket.yaml"), unix.S_IFSOCK|0o644, 0),
		os.Mkdir(path("folder.yaml"), 0o000),
	)...)
}

func putSpecialFiles(s *attackTest) {
	s.Helper()
	s.must(specialFiles(s.dir))
}

// churnSpecialFiles removes and recreates the special files, and replaces a valid manifest with a FIFO.
func churnSpecialFiles(ctx context.Context, s *attackTest) error {
	for ctx.Err() == nil {
		s.removeHostile()
		err := errors.Join(
			s.put("was-good.json", harness.Manifest(service("was-good", "172.30.9.20", 0))),
			unix.Mkfifo(filepath.Join(s.dir, ".fifo"), 0o644),
		)
		s.pause(ctx, 200*time.Millisecond)
		err = errors.Join(err, os.Rename(filepath.Join(s.dir, ".fifo"), filepath.Join(s.dir, "was-good.json")),
			specialFiles(s.dir))
		if err != nil {
			return err
		}
		s.pause(ctx, 200*time.Millisecond)
	}
	return nil
}

// putConfig gives the daemon a configuration file.
func putConfig(s *attackTest) {
	s.Helper()
	name := filepath.Join(s.tempDir(), "config.yaml")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + s.plane.mode + "\n"
	s.must(os.WriteFile(name, []byte(text), 0o644))
	s.args = append(s.args, "--config="+name)
}

// replaceConfig replaces the configuration with a FIFO, an endless device, a file of 1 GB, and a valid configuration.
func replaceConfig(ctx context.Context, s *attackTest) error {
	_, name, _ := strings.Cut(s.args[len(s.args)-1], "=")
	good, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	draft := filepath.Join(filepath.Dir(name), "draft")
	for _, replace := range []func() error{
		func() error { return unix.Mkfifo(draft, 0o644) },
		func() error { return os.Symlink("/dev/zero", draft) },
		func() error { return errors.Join(os.WriteFile(draft, nil, 0o644), os.Truncate(draft, 1<<30)) },
		func() error {
			return os.WriteFile(draft, append(good, "nodePortAddresses: [192.168.0.0/16, 2001:db8::/32]\n"...), 0o644)
		},
	} {
		if err := errors.Join(replace(), os.Rename(draft, name)); err != nil {
			return err
		}
		s.pause(ctx, 450*time.Millisecond)
	}
	return nil
}

// checkConfig verifies that the last configuration is in effect: NodePorts are served on the
// second address of the node as well.
func checkConfig(s *attackTest) {
	s.Helper()
	s.eventually(changeTimeout(), func() error {
		if to := at("192.168.1.2", fixedNodePort); !s.answers(s.lab.Outside, to, s.pods[0]) {
			return fmt.Errorf("%s does not answer: the last configuration is not in effect", to)
		}
		return nil
	})
}

// churnFiles writes and removes files as fast as possible.
func churnFiles(ctx context.Context, s *attackTest) error {
	for n := 0; ctx.Err() == nil; n++ {
		name := filepath.Join(s.dir, fmt.Sprintf("hostile-%d.yaml", n%40))
		if err := os.WriteFile(name,
			harness.Manifest(service(fmt.Sprintf("churn-%d", n%40), fmt.Sprintf("172.30.8.%d", n%40), 0)), 0o644); err != nil {
			return err
		}
		gone := filepath.Join(s.dir, fmt.Sprintf("hostile-%d.yaml", (n+20)%40))
		if err := os.Remove(gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		time.Sleep(200 * time.Microsecond)
	}
	return nil
}

// restartUnderChurn restarts the daemon repeatedly while churnFiles runs.
func restartUnderChurn(s *attackTest) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- churnFiles(ctx, s) }()
	for range 8 {
		s.daemon.stop(syscall.SIGTERM)
		s.launch()
		s.change()
	}
	cancel()
	s.must(<-done)
	s.removeHostile()
}
