//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sluice-proxy/sluice/test/deploy/image"
)

// Names of images. podImage is the client and the server of tests, and in place of pauseImage the sandbox of each pod.
const (
	podImage   = "sluice.test/pod:1"
	pauseImage = "registry.k8s.io/pause:3.10" // in deploy/
	dnsImage   = "sluice.test/coredns:1"
	kubeProxy  = "registry.k8s.io/kube-proxy:v1.37.2"
)

// writeImages writes archives of all images into a folder. Images of Sluice have the names in deploy/.
func writeImages(ctx context.Context, dir string, programs map[string]string) ([]string, error) {
	sluice, err := sluiceImage()
	if err != nil {
		return nil, err
	}
	packages, err := image.Packages(ctx)
	if err != nil {
		return nil, err
	}
	plain, err := image.Build(ctx, filepath.Join(dir, "sluice"), programs["sluice"])
	if err != nil {
		return nil, err
	}
	iptables, err := image.Build(ctx, filepath.Join(dir, "sluice-iptables"), programs["sluice"], "-packages", packages)
	if err != nil {
		return nil, err
	}
	proxy, err := withFile(iptables, "usr/local/bin/kube-proxy", programs["kube-proxy"])
	if err != nil {
		return nil, err
	}
	pod, err := withFile(empty.Image, "pod", programs["pod"])
	if err != nil {
		return nil, err
	}
	dns, err := withFile(empty.Image, "coredns", programs["coredns"])
	if err != nil {
		return nil, err
	}
	images := map[string]v1.Image{
		sluice: plain, sluice + "-iptables": iptables, kubeProxy: proxy, podImage: pod, pauseImage: pod, dnsImage: dns,
	}
	var files []string
	for at, content := range images {
		file := filepath.Join(dir, fmt.Sprintf("%d.tar", len(files)))
		if err := writeArchive(file, at, content); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// writeArchive writes an image with a name for ctr images import.
func writeArchive(file, at string, content v1.Image) error {
	tag, err := name.NewTag(at)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, content)
}

// withFile adds a program to an image, which runs it.
func withFile(to v1.Image, at, program string) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: at, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	out, err := mutate.AppendLayers(to, layer)
	if err != nil {
		return nil, err
	}
	config, err := out.ConfigFile()
	if err != nil {
		return nil, err
	}
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint = []string{"/" + at}
	return mutate.ConfigFile(out, config)
}
