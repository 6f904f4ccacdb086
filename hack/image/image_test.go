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

// The layout is valid, and its images have the files and the settings of the Dockerfile.
func TestImage(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, last, _ := strings.Cut(string(text), "FROM scratch\n")
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
		lines := []string{"ENV " + c.Config.Env[0], "USER " + c.Config.User, fmt.Sprintf("ENTRYPOINT [%q]", c.Config.Entrypoint[0])}
		for key, value := range c.Config.Labels {
			lines = append(lines, fmt.Sprintf("%s=%q", key, strings.Replace(value, "v0.1.0", "$VERSION", 1)))
		}
		for _, line := range lines {
			if !strings.Contains(last, line) {
				t.Errorf("the last stage of the Dockerfile has no %q", line)
			}
		}
		if n := strings.Count(last, "org.opencontainers"); n != len(c.Config.Labels) {
			t.Errorf("%d labels, the Dockerfile has %d", len(c.Config.Labels), n)
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
	o, err := parse(strings.Fields("-version v1 -out "+filepath.Join(dir, "new")+" linux/amd64="+filepath.Join(dir, "absent")), epoch)
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
