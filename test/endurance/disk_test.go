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

// follows makes sure that Sluice does what it is told, and that a person can ask.
func (d *daemon) follows() {
	d.w.Helper()
	for _, pods := range [][]int{{1}, {0, 1, 2}} {
		d.w.write("web.json", web(pods...))
		d.w.answeredBy(d.w.client, d.w.ways()[0].To, pods...)
		d.w.answeredBy(d.w.lab.Outside, d.w.ways()[4].To, pods...)
	}
	d.alive()
	if out, status := d.w.asks("status"); status != 0 || !strings.Contains(out, "healthy") {
		d.w.Errorf("sluice status ends with %d and says:\n%s", status, out)
	}
	d.w.same()
}

func TestAReadOnlyRootFileSystemIsEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.config(w.folder(), settings{})
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + file}
	d := w.start(launch{hardship: readOnly})
	d.settled(1)
	traffic := w.traffic()
	d.follows()

	w.config(filepath.Dir(file), settings{"bindAddressHardFail": true, "nftables": object{"masqueradeAll": true}})
	d.says("Starting anew")
	w.masquerades(true)
	d.follows()
	w.unharmed(traffic)

	d.signal(syscall.SIGTERM)
	d.dead()
	if d.Err() != nil {
		w.Errorf("after SIGTERM: %v\n%s", d.Err(), d.log)
	}
}

func TestAFullDiskStopsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
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
	d.settled(1)
	traffic := w.traffic()
	for _, output := range []*os.File{full, onDisk} {
		d.kill()
		d = w.start(launch{output: output}, "--logging-format=json")
		d.settled(1)
		d.follows()
	}

	// An editor that cannot write leaves nothing of the file; what was in force stays.
	if err := os.WriteFile(file, []byte(configuration(settings{"nftables": object{"masqueradeAll": true}, "clusterCIDR": strings.Repeat(" ", 1<<20)})), 0o644); err == nil {
		w.Fatal("the disk is not full")
	}
	w.measures(`sluice_config_reloads_total{result="refused"}`, "1")
	w.masquerades(false)
	d.follows()
	w.unharmed(traffic)

	before := list(w, disk)
	for _, name := range []string{filepath.Join(disk, "written.conf"), "/dev/full"} {
		out, status := w.asks("--write-config-to=" + name)
		if status == 0 || !strings.Contains(out, "no space left on device") || !strings.Contains(out, "write configuration") {
			w.Errorf("--write-config-to %s ends with %d and says: %s", name, status, out)
		}
	}
	if after := list(w, disk); !slices.Equal(before, after) {
		w.Errorf("the full disk held %v, and now %v", before, after)
	}
}

// Whoever reads the log is gone, or does not read on.
func TestAnUnreadLogDoesNotBlockTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for what, gone := range map[string]bool{"the reader is gone": true, "nobody reads on": false} {
		read, write, err := os.Pipe()
		w.must(err)
		_, err = unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
		w.must(err)
		if gone {
			w.must(read.Close())
		}
		d := w.start(launch{output: write}, "-v=4")
		w.must(write.Close())
		d.settled(1)
		for range 20 { // each is logged
			d.follows()
		}
		d.kill()
		w.Logf("%s: serving went on", what)
		_ = read.Close()
	}
}

func list(w *world, dir string) []string {
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

// full is a file system with a configuration file, an empty log and no room.
func (w *world) full() string {
	w.Helper()
	dir := w.folder()
	w.must(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")) // of this process's own mount namespace
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
