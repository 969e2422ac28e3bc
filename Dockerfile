# An image with the command and Debian's C library. libcuda and NVML come from the host's driver, by NVIDIA's container toolkit;
# kernels are in the program, so that no CUDA toolkit is needed.
#
#   cargo xtask wheel
#   docker build --tag firstlight --file Dockerfile target/packages
#   docker run --rm --gpus all --volume "$PWD:/runs" firstlight check
FROM debian:12-slim
ARG TARGETARCH
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --chmod=0755 image/${TARGETARCH}/firstlight /usr/local/bin/firstlight
WORKDIR /runs
ENTRYPOINT ["firstlight"]
CMD ["doctor"]
