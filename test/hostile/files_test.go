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

// heedEncodings verifies that of each file both Services are served or the file
// is reported.
func heedEncodings(s *siege) {
	s.Helper()
	putEncodings(s) // they were evicted
	s.eventually(giveUp, func() error {
		for i, e := range encodings() {
			if err := s.servedOrReported(e.file, encodedIPs(i)); err != nil {
				return err
			}
		}
		return nil
	})
	for i, e := range encodings() { // all that is wrong, not only the first
		if err := s.servedOrReported(e.file, encodedIPs(i)); err != nil {
			s.Error(err)
		}
	}
	s.evict()
}

func (s *siege) servedOrReported(file string, ips [2]string) error {
	for _, ip := range ips {
		if !s.answers(s.client, netip.AddrPortFrom(netip.MustParseAddr(ip), 80), s.pods[0]) {
			if s.reported(file) {
				return nil
			}
			return fmt.Errorf("%s: a Service in it is lost, and nothing says so", file)
		}
	}
	return nil
}

// reported reports whether the status or the log mentions a text.
func (s *siege) reported(text string) bool {
	out, _ := s.ask("status", "-o", "json")
	return strings.Contains(out, text) || strings.Contains(s.daemon.Log.String(), text)
}

// heeded verifies that the status or the log mentions a text.
func (s *siege) heeded(text string) {
	s.Helper()
	if !s.reported(text) {
		s.Errorf("neither status nor log mention %q", text)
	}
}

// putDuplicates writes Services in which keys are there twice.
func putDuplicates(s *siege) {
	s.Helper()
	s.must(s.put("duplicate.json", []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"twice"},
"spec":{"clusterIP":"172.30.9.9","clusterIP":"172.30.9.10","ports":[{"port":80,"port":81}],"ports":[{"port":82}]}}`)))
	s.must(s.put("duplicate.yaml", []byte(`apiVersion: v1
kind: Service
kind: Service
metadata: {name: again, name: "`+turnsIP+`"}
spec: {clusterIP: 172.30.9.11, clusterIP: 172.30.9.12, ports: [{port: 80}], ports: [{port: 80}]}
`)))
}

// putSparse writes a file of 4 GB that takes no space.
func putSparse(s *siege) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.dir, "hostile.yaml"), []byte("# "), 0o644))
	s.must(os.Truncate(filepath.Join(s.dir, "hostile.yaml"), 4<<30))
}

// growSparse makes the file grow.
func growSparse(ctx context.Context, s *siege) error {
	var errs []error
	for n := int64(1); ctx.Err() == nil; n++ {
		errs = append(errs, os.Truncate(filepath.Join(s.dir, "hostile.yaml"), 4<<30+n))
		s.pause(ctx, 100*time.Millisecond)
	}
	return errors.Join(errs...)
}

// specialFiles puts into a folder what opens slowly, never, or without an end.
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

func putSpecialFiles(s *siege) {
	s.Helper()
	s.must(specialFiles(s.dir))
}

// churnSpecialFiles removes the special files and makes them again, and puts a
// FIFO in place of a manifest that was read.
func churnSpecialFiles(ctx context.Context, s *siege) error {
	for ctx.Err() == nil {
		s.evict()
		err := errors.Join(
			s.put("was-good.json", harness.Manifest(service("was-good", "172.30.9.20", 0))),
			unix.Mkfifo(filepath.Join(s.dir, ".fifo"), 0o644),
		)
		s.pause(ctx, 200*time.Millisecond)
		err = errors.Join(err, os.Rename(filepath.Join(s.dir, ".fifo"), filepath.Join(s.dir, "was-good.json")), specialFiles(s.dir))
		if err != nil {
			return err
		}
		s.pause(ctx, 200*time.Millisecond)
	}
	return nil
}

// putConfig has the daemon follow a configuration file.
func putConfig(s *siege) {
	s.Helper()
	name := filepath.Join(s.folder(), "config.yaml")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + s.plane.mode + "\n"
	s.must(os.WriteFile(name, []byte(text), 0o644))
	s.args = append(s.args, "--config="+name)
}

// replaceConfig puts a FIFO, an endless device and 1 GB in place of the
// configuration.
func replaceConfig(ctx context.Context, s *siege) error {
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

// followsConfig verifies that the last configuration is in force: NodePorts are
// served on the second address of the node as well.
func followsConfig(s *siege) {
	s.Helper()
	s.eventually(giveUp, func() error {
		if to := at("192.168.1.2", staysNodePort); !s.answers(s.lab.Outside, to, s.pods[0]) {
			return fmt.Errorf("%s does not answer: the last configuration is not followed", to)
		}
		return nil
	})
}

// churnFiles writes and removes files as fast as it can.
func churnFiles(ctx context.Context, s *siege) error {
	for n := 0; ctx.Err() == nil; n++ {
		name := filepath.Join(s.dir, fmt.Sprintf("hostile-%d.yaml", n%40))
		if err := os.WriteFile(name, harness.Manifest(service(fmt.Sprintf("goes-%d", n%40), fmt.Sprintf("172.30.8.%d", n%40), 0)), 0o644); err != nil {
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

// startsUnderChurn restarts the daemon again and again while files come and go.
func startsUnderChurn(s *siege) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- churnFiles(ctx, s) }()
	for range 8 {
		s.daemon.stop(syscall.SIGTERM)
		s.launch()
		s.turn()
	}
	cancel()
	s.must(<-done)
	s.evict()
}
