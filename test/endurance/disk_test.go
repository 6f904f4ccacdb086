//go:build linux

package endurance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// checkChanges verifies that changes take effect, and that commands work.
func (d *daemon) checkChanges() {
	d.w.Helper()
	for _, pods := range [][]int{{1}, {0, 1, 2}} {
		d.w.write("web.json", web(pods...))
		d.w.waitAnsweredBy(d.w.client, d.w.ways()[0].To, pods...)
		d.w.waitAnsweredBy(d.w.lab.Outside, d.w.ways()[4].To, pods...)
	}
	d.checkAlive()
	if out, status := d.w.runSluice("status"); status != 0 || !strings.Contains(out, "healthy") {
		d.w.Errorf("sluice status exits with %d; its output:\n%s", status, out)
	}
	d.w.checkDiff()
}

func TestReadOnlyRootFileSystem(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	file := w.config(w.tempDir(), settings{})
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + file}
	d := w.start(launch{restriction: readOnly})
	d.waitSynced(1)
	traffic := w.startTraffic()
	d.checkChanges()

	w.config(filepath.Dir(file), settings{"bindAddressHardFail": true, "nftables": object{"masqueradeAll": true}})
	d.waitForLog("Restarting in the same process")
	w.waitMasquerade(true)
	d.checkChanges()
	w.checkTraffic(traffic)

	d.signal(syscall.SIGTERM)
	d.waitExit()
	if d.Err() != nil {
		w.Errorf("after SIGTERM: %v\n%s", d.Err(), d.log)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	disk := w.full()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	w.must(err)
	defer func() { _ = full.Close() }()
	onDisk, err := os.OpenFile(filepath.Join(disk, "log"), os.O_WRONLY|os.O_APPEND, 0)
	w.must(err)
	defer func() { _ = onDisk.Close() }()

	file := filepath.Join(disk, "config.conf")
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + file}
	d := w.start(launch{output: full})
	d.waitSynced(1)
	traffic := w.startTraffic()
	for _, output := range []*os.File{full, onDisk} {
		d.kill()
		d = w.start(launch{output: output}, "--logging-format=json")
		d.waitSynced(1)
		d.checkChanges()
	}

	// A failed write truncates the file; the previous configuration stays in effect.
	large := settings{"nftables": object{"masqueradeAll": true}, "clusterCIDR": strings.Repeat(" ", 1<<20)}
	if err := os.WriteFile(file, []byte(configuration(large)), 0o644); err == nil {
		w.Fatal("the disk is not full")
	}
	w.waitMetric(`sluice_config_reloads_total{result="refused"}`, "1")
	w.waitMasquerade(false)
	d.checkChanges()
	w.checkTraffic(traffic)

	before := list(w, disk)
	for _, name := range []string{filepath.Join(disk, "written.conf"), "/dev/full"} {
		out, status := w.runSluice("--write-config-to=" + name)
		if status == 0 || !strings.Contains(out, "no space left on device") || !strings.Contains(out, "write configuration") {
			w.Errorf("--write-config-to %s exits with %d; its output: %s", name, status, out)
		}
	}
	if after := list(w, disk); !slices.Equal(before, after) {
		w.Errorf("the full disk had %v, now %v", before, after)
	}
}

// The reader of the log has closed the pipe, or stops reading.
func TestAnUnreadLogDoesNotBlockTheProcess(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	for name, closed := range map[string]bool{"closed pipe": true, "full pipe": false} {
		read, write, err := os.Pipe()
		w.must(err)
		_, err = unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
		w.must(err)
		if closed {
			w.must(read.Close())
		}
		d := w.start(launch{output: write}, "-v=4")
		w.must(write.Close())
		d.waitSynced(1)
		for range 20 { // each is logged
			d.checkChanges()
		}
		d.kill()
		w.Logf("%s: changes took effect", name)
		_ = read.Close()
	}
}

func list(w *testEnv, dir string) []string {
	w.Helper()
	entries, err := os.ReadDir(dir)
	w.must(err)
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		w.must(err)
		names = append(names, fmt.Sprintf("%s (%d bytes)", e.Name(), info.Size()))
	}
	return names
}

// full creates a full file system with a configuration file and an empty log.
func (w *testEnv) full() string {
	w.Helper()
	dir := w.tempDir()
	w.must(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")) // in the mount namespace of this process
	w.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	w.must(os.WriteFile(filepath.Join(dir, "log"), nil, 0o644))
	w.config(dir, settings{})
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	w.must(err)
	defer func() { _ = ballast.Close() }()
	for err == nil {
		_, err = ballast.Write(make([]byte, 512))
	}
	return dir
}
