package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// write writes the layout into a folder beside it first: there is a whole one or none.
func write(o options) error {
	if _, err := os.Lstat(o.out); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already: remove it first", o.out)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range o.programs {
		image, err := imageOf(o, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.platform, err)
		}
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &p.platform}})
	}
	parent := filepath.Dir(o.out)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	name := o.version
	if o.packages != "" {
		name += "-iptables"
	}
	part, err := os.MkdirTemp(parent, ".image-")
	if err != nil {
		return err
	}
	if _, err = layout.Write(part, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": name}},
	})); err == nil {
		err = errors.Join(os.Chmod(part, 0o755), os.Rename(part, o.out))
	}
	return errors.Join(err, os.RemoveAll(part))
}

func imageOf(o options, p program) (v1.Image, error) {
	layers, err := layersOf(o, p)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, content := range layers {
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
		layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "hack/image"},
		})
		if err != nil {
			return nil, err
		}
	}
	return mutate.ConfigFile(image, configOf(o, p, image))
}

// debianLayer returns the tar archive of Debian's files. It is the same in each version, so that nodes pull it once.
func debianLayer(o options, arch string) ([]byte, error) {
	files, err := debianFiles(filepath.Join(o.packages, arch), arch)
	if err != nil {
		return nil, err
	}
	return archive(files, time.Unix(0, 0))
}

// layersOf returns the tar archives of an image.
func layersOf(o options, p program) (layers [][]byte, err error) {
	if o.packages != "" {
		layer, err := debianLayer(o, p.platform.Architecture)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	content, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	layer, err := archive([]file{
		{path: "usr/local/bin/sluice", mode: 0o755, content: content},
		{path: "usr/local/bin/kube-proxy", mode: 0o777, link: "sluice"},
	}, o.created)
	return append(layers, layer), err
}

// configOf returns the configuration of the image, as in the Dockerfile.
func configOf(o options, p program, image v1.Image) *v1.ConfigFile {
	description := "A Kubernetes service proxy, a drop-in for kube-proxy"
	licences := "Apache-2.0"
	programs := "/usr/local/bin"
	if o.packages != "" {
		description += ", with iptables"
		licences += " AND GPL-2.0-or-later"
		programs += ":/usr/sbin"
	}
	c, _ := image.ConfigFile() // it is in memory
	c = c.DeepCopy()
	c.OS = p.platform.OS
	c.Architecture = p.platform.Architecture
	c.Variant = p.platform.Variant
	c.Created = v1.Time{Time: o.created}
	c.Config = v1.Config{
		Entrypoint: []string{"sluice"},
		Env:        []string{"PATH=" + programs},
		User:       "0:0", // container runtimes give nobody else the capability that it needs
		Labels: map[string]string{
			"org.opencontainers.image.title":       "Sluice",
			"org.opencontainers.image.description": description,
			"org.opencontainers.image.source":      "https://github.com/sluice-proxy/sluice",
			"org.opencontainers.image.licenses":    licences,
			"org.opencontainers.image.version":     o.version,
		},
	}
	return c
}

// file is a regular file or a symbolic link.
type file struct {
	path    string // without a leading slash
	mode    int64
	link    string // the target of a symbolic link
	content []byte
}

// archive returns a tar archive of files and their folders, which belong to root.
func archive(files []file, at time.Time) ([]byte, error) {
	files = append(files, folders(files)...)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Linkname: f.link, Mode: f.mode, Size: int64(len(f.content)),
			ModTime: at, Format: tar.FormatUSTAR,
		}
		switch {
		case f.link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(f.path, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// folders returns the folders that files are in. Their paths end with a slash.
func folders(files []file) (list []file) {
	seen := map[string]bool{".": true}
	for _, f := range files {
		for dir := path.Dir(f.path); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			list = append(list, file{path: dir + "/", mode: 0o755})
		}
	}
	return list
}
