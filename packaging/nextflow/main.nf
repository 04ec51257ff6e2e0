// A genome and a VCF in; a trained model, its likelihood, and scored variants with a heat map out.
//   nextflow run packaging/nextflow/main.nf --genome my_genome.fa.gz --vcf variants.vcf.gz --region chr1:1000-1200
// The names of the genome and of the VCF file must have no blanks: they are parts of command lines.
nextflow.enable.dsl = 2

params.genome = null
params.vcf = null
params.region = null
params.arguments = ''
params.output = 'dnadiff_results'

process TRAIN {
    cpus 2
    publishDir params.output, mode: 'copy'

    input:
    path genome

    output:
    path 'run'

    script:
    """
    OMP_NUM_THREADS=${task.cpus} python -m dnadiff.train data=fasta data.path=${genome} ${params.arguments} hydra.run.dir=run
    """
}

process EVALUATE {
    cpus 2
    publishDir params.output, mode: 'copy'

    input:
    path run
    path genome

    output:
    path 'evaluate.json'

    script:
    """
    OMP_NUM_THREADS=${task.cpus} python -m dnadiff.evaluate checkpoint=${run} output=evaluate.json
    """
}

process VARIANTS {
    cpus 2
    publishDir params.output, mode: 'copy'

    input:
    path run
    path genome
    path vcf

    output:
    path 'variants.tsv'
    path 'variants.tsv.json'

    script:
    """
    OMP_NUM_THREADS=${task.cpus} python -m dnadiff.variants checkpoint=${run} vcf=${vcf} genome=${genome} output=variants.tsv
    """
}

process HEAT_MAP {
    cpus 2
    publishDir params.output, mode: 'copy'

    input:
    path run
    path genome

    output:
    path 'region.tsv'
    path 'region.tsv.json'
    path 'region.html'
    path 'region_heat_map_1.png'
    path 'region_heat_map_1.svg'

    script:
    """
    OMP_NUM_THREADS=${task.cpus} python -m dnadiff.variants checkpoint=${run} saturate=${params.region} genome=${genome} output=region.tsv report=region.html
    """
}

workflow {
    if (!params.genome || !params.vcf || !params.region) {
        error 'give --genome, --vcf and --region'
    }
    genome = file(params.genome, checkIfExists: true)
    TRAIN(genome)
    EVALUATE(TRAIN.out, genome)
    VARIANTS(TRAIN.out, genome, file(params.vcf, checkIfExists: true))
    HEAT_MAP(TRAIN.out, genome)
}
