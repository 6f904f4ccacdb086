package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const epoch = "1764115200" // 2025-11-26

// written writes an image of two programs into a new folder, and returns the folder.
func written(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-version", "v0.1.0", "-out", filepath.Join(dir, "dist", "image")}
	for _, arch := range []string{"amd64", "arm64"} {
		path := filepath.Join(dir, arch)
		if err := os.WriteFile(path, []byte("program of "+arch), 0o700); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
		args = append(args, "linux/"+arch+"="+path)
	}
	o, err := parse(args, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(o); err != nil {
		t.Fatal(err)
	}
	return o.out
}

// images opens the images in a layout, by platform.
func images(t *testing.T, dir string) map[string]v1.Image {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	top, err := layout.ImageIndexFromPath(dir)
	must(err)
	must(validate.Index(top))
	list, err := top.IndexManifest()
	must(err)
	if len(list.Manifests) != 1 || list.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v0.1.0" {
		t.Fatalf("the layout has %+v, want one index with the name of the version", list.Manifests)
	}
	index, err := top.ImageIndex(list.Manifests[0].Digest)
	must(err)
	list, err = index.IndexManifest()
	must(err)
	all := map[string]v1.Image{}
	for _, m := range list.Manifests {
		all[m.Platform.String()], err = index.Image(m.Digest)
		must(err)
	}
	return all
}

// The layout is valid, and its images have the program under both names.
func TestImage(t *testing.T) {
	all := images(t, written(t))
	if len(all) != 2 {
		t.Fatalf("%d images, want 2", len(all))
	}
	for _, arch := range []string{"amd64", "arm64"} {
		image := all["linux/"+arch]
		c, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.Architecture != arch || c.OS != "linux" || c.Created.Unix() != 1764115200 {
			t.Errorf("%s: the image is for %s/%s, of %v", arch, c.OS, c.Architecture, c.Created)
		}
		want := []string{
			"usr 755 0:0", "usr/local 755 0:0", "usr/local/bin 755 0:0", "usr/local/bin/kube-proxy 777 0:0 -> sluice",
			"usr/local/bin/sluice 755 0:0 program of " + arch,
		}
		if got := listing(t, image); !slices.Equal(got, want) {
			t.Errorf("%s: the files are %q, want %q", arch, got, want)
		}
	}
}

// The settings of the images equal the settings of the last two stages of the Dockerfile.
func TestSettings(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "FROM scratch")
	for i, o := range []options{{version: "v0.1.0", packages: "packages"}, {version: "v0.1.0"}} {
		stage, c := parts[i+1], configOf(o, program{}, empty.Image).Config
		lines := []string{"ENV " + c.Env[0] + "\n", "USER " + c.User, fmt.Sprintf("ENTRYPOINT [%q]", c.Entrypoint[0])}
		for key, value := range c.Labels {
			lines = append(lines, fmt.Sprintf("%s=%q", key, strings.Replace(value, "v0.1.0", "$VERSION", 1)))
		}
		for _, line := range lines {
			if !strings.Contains(stage, line) {
				t.Errorf("stage %d of the Dockerfile has no %q", i+1, line)
			}
		}
		if n := strings.Count(stage, "org.opencontainers"); n != len(c.Labels) {
			t.Errorf("%d labels, stage %d of the Dockerfile has %d", len(c.Labels), i+1, n)
		}
	}
}

// What a program needs must be in a package.
func TestFilesOfDebian(t *testing.T) {
	content, err := os.ReadFile("/bin/sh") // it needs a library
	if err != nil {
		t.Fatal(err)
	}
	files := func(also ...string) map[string]file {
		all := map[string]file{}
		for _, name := range append(also, "usr/sbin/iptables-nft", "usr/sbin/iptables-legacy",
			"usr/lib/x/xtables/libxt_a.so", "etc/protocols",
			"usr/share/doc/a/copyright", "var/lib/dpkg/status.d/a", "usr/bin/other") {
			all[name] = file{path: name, mode: 0o644}
		}
		return all
	}
	if _, err := choose(files()); err == nil ||
		!strings.Contains(err.Error(), "no package has /usr/sbin/xtables-*-multi") {
		t.Errorf("without the program: %v", err)
	}
	all := files("usr/sbin/xtables-nft-multi")
	all["usr/sbin/iptables-nft"] = file{path: "usr/sbin/iptables-nft", link: "xtables-nft-multi"}
	if got, err := choose(all); err != nil || len(got) != len(all)-1 {
		t.Errorf("%d files, %v, want all but usr/bin/other", len(got), err)
	}
	all["usr/sbin/iptables-nft"] = file{path: "usr/sbin/iptables-nft", link: "/usr/sbin/absent"}
	if _, err := choose(all); err == nil || !strings.Contains(err.Error(), "no package has /usr/sbin/absent") {
		t.Errorf("a link to nothing: %v", err)
	}
	all = files("usr/sbin/xtables-nft-multi")
	all["usr/sbin/xtables-nft-multi"] = file{path: "usr/sbin/xtables-nft-multi", content: content}
	if _, err := choose(all); err == nil || !strings.Contains(err.Error(), "no package has the library libc.so.6") {
		t.Errorf("without a library: %v", err)
	}
}

// A package that is not the pinned one is refused.
func TestChecksum(t *testing.T) {
	dir := t.TempDir()
	for line := range strings.Lines(debianPackages) {
		name := filepath.Base(strings.TrimSpace(line))
		if err := os.WriteFile(filepath.Join(dir, name), []byte("another"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := debianFiles(dir, "arm64"); err == nil || !strings.Contains(err.Error(), "arm64.deb: its SHA-256 is ") {
		t.Errorf("another package: %v", err)
	}
	if _, err := debianFiles(t.TempDir(), "amd64"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no package: %v", err)
	}
}

func listing(t *testing.T, image v1.Image) (list []string) {
	t.Helper()
	r := mutate.Extract(image)
	defer func() { _ = r.Close() }() // it was only read from
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%s %o %d:%d", h.Name, h.Mode, h.Uid, h.Gid)
		switch h.Typeflag {
		case tar.TypeSymlink:
			text += " -> " + h.Linkname
		case tar.TypeReg:
			content, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			text += " " + string(content)
		}
		list = append(list, text)
	}
}

// Two runs in different folders write the same bytes.
func TestReproducible(t *testing.T) {
	read := func(dir string) map[string]string {
		all := map[string]string{}
		if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(filepath.Join(dir, path))
			all[path] = string(content)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	first, second := read(written(t)), read(written(t))
	if len(first) < 8 || len(first) != len(second) {
		t.Errorf("%d and %d files", len(first), len(second))
	}
	for path, content := range first {
		if second[path] != content {
			t.Errorf("%s differs", path)
		}
	}
}

// Bad arguments are named. An existing folder stays as it is.
func TestBadInput(t *testing.T) {
	for _, c := range []struct{ args, epoch, want string }{
		{"-out x linux/amd64=y", epoch, "-version"},
		{"-files amd64", epoch, "-packages"},
		{"-version v1 -out x", epoch, "a program"},
		{"-version v1 -out x linux/amd64=y", "", "SOURCE_DATE_EPOCH="},
		{"-version v1 -out x linux/amd64=y", "-5", "SOURCE_DATE_EPOCH=-5"},
		{"-version v1 -out x linux/amd64", epoch, "OS/ARCHITECTURE=PROGRAM"},
		{"-version v1 -out x linux=y", epoch, "OS/ARCHITECTURE=PROGRAM"},
	} {
		if _, err := parse(strings.Fields(c.args), c.epoch); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: %v, want %q", c.args, c.epoch, err, c.want)
		}
	}
	dir := t.TempDir()
	o, err := parse(strings.Fields("-version v1 -out "+dir+"/new linux/amd64="+dir+"/absent"), epoch)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent program: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
	o.out = dir
	if err := write(o); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("an existing folder: %v", err)
	}
}
